"""A drafter with the caller's own code in place of a draft model."""

from __future__ import annotations

import logging

from actors.proposals import Proposer
from actors.settings import DrafterSettings
from protocols.address import default_address


def run_proposer(
    proposer: Proposer, name: str, *, connect: str = "", key: str = "", server_key: str = "", actor_id: str = ""
) -> int:
    """Run a drafter that drafts with ``proposer``, until a signal comes or it is drained.

    Args:
        proposer: What guesses: see ``Proposer``. A wrong guess costs time and never changes a token.
        name: Shown where other drafters show the name of their model.
        connect: The verifier's address; by default that of this user's `duoactor up`.
        key: CURVE secret key file with the role ``drafter``, for a verifier that uses keys.
        server_key: The verifier's CURVE public key file.
        actor_id: Name in status output; by default drafter-HOST-PID.

    Returns:
        The exit code for the process.

    Example:
        ```python
        raise SystemExit(run_proposer(Pairs(), "pairs"))  # examples/own_proposer.py
        ```
    """
    from actors.drafter.proposer import ProposerDraft, of_any_tokenizer
    from actors.drafter.start import run_drafter

    logging.basicConfig(format="%(message)s", level=logging.INFO)  # without effect where the program has set its own
    settings = DrafterSettings(
        draft=name, connect=connect or default_address(), key=key, server_key=server_key, actor_id=actor_id
    )
    return run_drafter(settings, lambda _: ProposerDraft(proposer, of_any_tokenizer(name)))
