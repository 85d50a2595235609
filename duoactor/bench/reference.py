"""Stock ``transformers`` as a yardstick: :mod:`actors.engines.measuring.reference` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from actors.settings import VerifierSettings
from duoactor.bench.answers import TimedAnswer
from duoactor.bench.methods import Row
from protocols.errors import DuoactorError, RequestError
from protocols.messages import ChatTurn, FailureCode, Sampling, StatusReport

REPLY_LIMIT = 2**26  # bytes of one line


class Reference:
    """The running child; it sleeps while others are measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.device = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, verifier: VerifierSettings, status: StatusReport, draft: str = ""
    ) -> AsyncIterator[Reference]:
        """The verifier's target in its type, on its device, threads and cores; ``draft``: a model for mode "assisted".

        Raises DuoactorError when it cannot run.
        """
        threads = verifier.threads or 1
        load = {
            "target": verifier.target,
            "draft": draft,
            "dtype": status.target.dtype,
            "device": status.target.device,
            "threads": threads,
            "cpus": verifier.cpus,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "actors.engines.measuring.reference"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches us alone
            limit=REPLY_LIMIT,
        )
        try:
            reference = cls(process)
            ready = await reference._exchange(load)
            if ready.get("error"):
                raise DuoactorError(f"transformers' own generate cannot run: {ready['error']}")
            reference.device = str(ready["device"])
            yield reference
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _exchange(self, document: object) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(msgspec.json.encode(document) + b"\n")
            await self.process.stdin.drain()
            line = await self.process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            code = await self.process.wait()
            raise DuoactorError(
                f"the transformers process ended (exit code {code}); go on without it: bench with other --methods"
            )
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> TimedAnswer:
        """In ``row.mode``: "plain", "assisted" or "prompt_lookup". RequestError if this transformers cannot."""
        found = await self._exchange(
            {
                "turns": [(turn.role, turn.content) for turn in turns],
                "mode": row.mode,
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed % 2**63,
            }
        )
        if found["error"]:
            raise RequestError(FailureCode.UNSUPPORTED, found["error"])
        return TimedAnswer(found["text"], tuple(found["token_ids"]), found["ttft_ms"], found["total_ms"])
