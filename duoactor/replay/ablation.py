"""What each source of ``auto``'s drafts is worth: it decodes once more without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from actors.replay.system import Policy
from protocols.messages import Method


def named(policies: Iterable[Policy], ablate: bool) -> Iterator[tuple[str, Policy]]:
    """Each policy by the name of its line; where ``ablate``, ``auto`` is followed by itself with a source taken away.
    Without the request's own text there is no memory either: both are retrieval."""
    for policy in policies:
        yield policy.method, policy
        if ablate and policy.method == Method.AUTO:
            yield f"{policy.method}, no draft model", dataclasses.replace(policy, draft=False)
            if policy.memory:
                yield f"{policy.method}, no memory", dataclasses.replace(policy, memory=0)
            yield f"{policy.method}, no retrieval", dataclasses.replace(policy, retrieval=False)
