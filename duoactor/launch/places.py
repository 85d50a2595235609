"""Files that hold where the verifiers of a cluster are at present, for ``--connect file://PATH``.

Clients and gateways outlive the place of their verifier: they read its file again when that changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType

from duoactor.client.connection import FILE

Find = Callable[[str], Awaitable[str]]  # the verifier's address, once it is another than the one given


class Places:
    """Keeps one file for each verifier while it is entered."""

    def __init__(self, directory: str, finds: Sequence[Find]) -> None:
        self._files = {Path(directory) / f"verifier-{number}": find for number, find in enumerate(finds, 1)}
        self.addresses = tuple(f"{FILE}{file}" for file in self._files)
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Places:
        self._following = [asyncio.create_task(_follow(file, find)) for file, find in self._files.items()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)


async def _follow(file: Path, find: Find) -> None:
    address = ""
    while True:
        address = await find(address)
        fresh = file.with_suffix(".new")
        fresh.write_text(address, encoding="utf-8")
        os.replace(fresh, file)
