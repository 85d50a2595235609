"""The target's states of committed tokens, kept until a draft head reads them.

A head that is not asked for a while, or that would read a long prompt, misses the oldest: it drafts without them. What
a cached prefix spares the target from computing has no states either, and the head has its own earlier reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import torch

from actors.engines.engine import Engine
from protocols.messages import HiddenStates

MOST_BYTES = 1 << 22  # size of one message, see ``StateRows``
KEPT = 2048  # tokens of a request; three states of a 7B model are 24 kB a token


@dataclass(slots=True)
class _Unread:
    start: int  # position of the first
    parts: deque[torch.Tensor] = field(default_factory=deque)
    count: int = 0


class States:
    """The states of ``layers``, for one reader."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._unread: dict[int, _Unread] = {}  # rows that no reader has had, by request
        self._lock = Lock()  # a piece of a prompt may be computed while the one before is sent

    def add(self, handle: int, position: int, part: torch.Tensor) -> None:
        """``part``: of the request's tokens from ``position`` on."""
        with self._lock:
            mine = self._unread.setdefault(handle, _Unread(position))
            mine.parts.append(part)
            mine.count += len(part)
            while mine.count - len(mine.parts[0]) >= KEPT:
                first = len(mine.parts.popleft())
                mine.start, mine.count = mine.start + first, mine.count - first

    def take(self, handle: int) -> tuple[int, torch.Tensor] | None:
        """The position of the first token that was not read, and the states of all from there on; None: there are
        none."""
        with self._lock:
            mine = self._unread.get(handle)
            if mine is None or not mine.parts:
                return None
            self._unread[handle] = _Unread(mine.start + mine.count)
        return mine.start, mine.parts[0] if len(mine.parts) == 1 else torch.cat([*mine.parts])

    def packed(self, handle: int) -> list[HiddenStates]:
        """What :meth:`take` gives, for the wire, in as many messages as it fills."""
        found = self.take(handle)
        if found is None:
            return []
        start, rows = found
        most = max(1, MOST_BYTES // (2 * rows.shape[1]))
        half = rows.to(torch.bfloat16).cpu().contiguous()
        return [
            HiddenStates(start + at, half.shape[1], half[at : at + most].view(torch.uint8).numpy().tobytes())
            for at in range(0, len(half), most)
        ]

    def end(self, handle: int) -> None:
        self._unread.pop(handle, None)


def unpacked(message: HiddenStates, width: int) -> torch.Tensor | None:
    """The states ``(tokens, width)`` of a message; None: another width, a broken size, or numbers that are not
    finite."""
    if message.width != width or not message.rows or len(message.rows) % (2 * width):
        return None
    rows = torch.frombuffer(bytearray(message.rows), dtype=torch.bfloat16).view(-1, width)
    return rows if bool(rows.isfinite().all()) else None


class Taps:
    """What readers have asked of one target."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers: list[States] = []
        self._layers: tuple[int, ...] = ()  # layers that the engine keeps states of

    def exchange(self, old: States | None, new: States | None) -> None:
        """Between two forwards: ``new`` reads from now on, ``old`` no more. Unread states cost less than recording the
        engine's rounds anew."""
        self._readers = [reader for reader in self._readers if reader is not old]
        if new is not None:
            self._readers.append(new)
            wanted = {layer for reader in self._readers for layer in reader.layers}
            if not wanted <= set(self._layers):
                self._layers = tuple(sorted(wanted))
                self._engine.tap(self._layers)

    def add(self, handle: int, position: int, rows: Sequence[int]) -> None:
        """These ``rows`` of the last forward are the request's tokens from ``position`` on."""
        if not self._readers:
            return
        tapped = self._engine.tapped
        part = tapped[rows.start : rows.stop].clone() if isinstance(rows, range) else tapped[list(rows)]
        for reader in self._readers:
            reader.add(handle, position, self._of(reader, part))

    def _of(self, reader: States, part: torch.Tensor) -> torch.Tensor:
        if reader.layers == self._layers:
            return part
        places = [self._layers.index(layer) for layer in reader.layers]
        return part.view(len(part), len(self._layers), -1)[:, places].flatten(1)

    def end(self, handle: int) -> None:
        for reader in self._readers:
            reader.end(handle)
