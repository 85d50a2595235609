"""Keys for the actors of a cluster, made at its start: one pair for each role."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocols.security import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyPair, KeyRole

VERIFIER = "verifier"
_ISSUED = (KeyRole.DRAFTER, KeyRole.CONTROLLER, KeyRole.OPERATOR)


@dataclass(frozen=True)
class KeyFiles:
    """The key files of one holder, by name. ``repr`` does not show them."""

    contents: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"KeyFiles({', '.join(self.contents)})"

    def write(self, directory: str) -> None:
        """Into a directory of the caller's own; each file is readable for its owner only."""
        for name, content in self.contents.items():
            with os.fdopen(os.open(Path(directory) / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)


def issue_keys() -> Mapping[str, KeyFiles]:
    """Key files by role: its own secret and the verifiers' public key. Of ``verifier`` (all verifiers are one to their
    peers): its own pair, and the public keys that may connect."""
    with tempfile.TemporaryDirectory() as directory:
        KeyPair.generate().write(Path(directory), VERIFIER)
        for role in _ISSUED:
            KeyPair.generate().write(Path(directory), role, [role])
        files = {path.name: path.read_bytes() for path in Path(directory).iterdir()}

    def pick(*names: str) -> KeyFiles:
        return KeyFiles({name: files[name] for name in names})

    public = [VERIFIER + PUBLIC_SUFFIX, *(role + PUBLIC_SUFFIX for role in _ISSUED)]
    issued = {str(role): pick(role + SECRET_SUFFIX, VERIFIER + PUBLIC_SUFFIX) for role in _ISSUED}
    return {**issued, VERIFIER: pick(VERIFIER + SECRET_SUFFIX, *public)}
