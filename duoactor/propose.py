"""Running a drafter whose guesses come from somebody's own code instead of a draft model."""

from __future__ import annotations

import logging

from actors.proposers.interface import Proposer
from actors.settings import DrafterSettings
from protocols.address import default_address


def run_proposer(
    proposer: Proposer, name: str, *, connect: str = "", key: str = "", server_key: str = "", actor_id: str = ""
) -> int:
    """Draft with ``proposer`` until a signal or until drained: ``duoactor drafter`` with your own guesses.

    ``name`` is shown where a draft model's name is. ``connect``: the verifier's address, by default this user's own;
    ``key`` and ``server_key``: CURVE key files for one on another host. Returns the process's exit code.
    """
    from actors.drafter.start import run_drafter
    from actors.proposers.draft_model import ProposerDraft, of_any_tokenizer

    logging.basicConfig(format="%(message)s", level=logging.INFO)  # without effect where the program has set its own
    settings = DrafterSettings(
        draft=name, connect=connect or default_address(), key=key, server_key=server_key, actor_id=actor_id
    )
    return run_drafter(settings, lambda _: ProposerDraft(proposer, of_any_tokenizer(name)))
