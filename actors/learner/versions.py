"""The weights that were promoted, on disk: a directory each, and one file that says which is in force.

Every change is a rename. Whatever is interrupted, the file names directories that are whole; others are removed at the
next start.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import msgspec

from actors.files import whole_file
from protocols.errors import ConfigError

KEPT = 3  # promotions that can be undone
STATE = "versions.json"
CANDIDATE = "candidate"


class Version(msgspec.Struct, frozen=True):
    """``path``: empty for the weights that drafters are started with. ``gain``: in agreement, over those before."""

    number: int = 0
    path: str = ""
    gain: float = 0.0


class _State(msgspec.Struct):
    draft: str  # the versions' draft
    versions: list[Version] = msgspec.field(default_factory=lambda: [Version()])  # all, in the order of promotion
    last_number: int = 0
    undone: str = ""  # the request that went back last


class Versions:
    def __init__(self, directory: Path, draft: str) -> None:
        """``draft`` names the weights that training began with: versions of others are no use. ConfigError if the
        directory cannot be written."""
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._state = self._read(draft)
            self._write()
            self._clean()
        except OSError as error:
            raise ConfigError(f"{directory} cannot be written ({error.strerror}): give --directory another") from None

    @property
    def current(self) -> Version:
        return self._state.versions[-1]

    @property
    def undone(self) -> str:
        """The id of the request that went back last; empty: none has."""
        return self._state.undone

    @property
    def candidate(self) -> Path:
        """The directory of a candidate, over the one before."""
        return self._directory / CANDIDATE

    def promote(self, gain: float) -> Version:
        """The candidate becomes the current version."""
        number = self._state.last_number + 1
        # A number may come again when the directory was lost, and drafters must not take one for the other then.
        path = self._directory / f"version-{number}-{uuid.uuid4().hex[:8]}"
        self.candidate.rename(path)
        kept = [*self._state.versions, Version(number, str(path), gain)]
        self._state.versions, self._state.last_number = kept[-KEPT - 1 :], number
        self._write()
        self._clean()
        return self.current

    def undo(self, asked: str = "") -> Version | None:
        """Make the version before current again, upon a request. None: there is none before."""
        if len(self._state.versions) < 2:
            return None
        self._state.versions.pop()
        self._state.undone = asked
        self._write()  # the directory stays until the next start: a drafter may be reading it
        return self.current

    def _read(self, draft: str) -> _State:
        try:
            state = msgspec.json.decode((self._directory / STATE).read_bytes(), type=_State)
        except (OSError, msgspec.MsgspecError):
            return _State(draft)
        whole = all(not version.path or Path(version.path, "config.json").is_file() for version in state.versions)
        if state.draft != draft or not state.versions or not whole:
            return _State(draft, last_number=state.last_number)
        return state

    def _write(self) -> None:
        with whole_file(self._directory / STATE) as file:
            file.write(msgspec.json.encode(self._state))

    def _clean(self) -> None:
        known = {version.path for version in self._state.versions}
        for path in (self.candidate, *self._directory.glob("version-*")):
            if str(path) not in known:
                shutil.rmtree(path, ignore_errors=True)
