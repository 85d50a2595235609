"""Figure 1: both models as the actors build them, each alone, by length of input."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from duoactor.bench.results import Lengths
from duoactor.launch.deployment import Deployment
from protocols.errors import DuoactorError


async def measure_lengths(deployment: Deployment) -> Lengths:
    """Measure in a child process, once the actors are gone. DuoactorError when it cannot."""
    task = {"verifier": deployment.verifier, "drafter": deployment.drafters[0]}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actors.engines.measuring.lengths"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(deployment.verifier.threads)},
        start_new_session=True,
    )
    try:
        out, said = await child.communicate(msgspec.json.encode(task))
    except BaseException:
        if child.returncode is None:
            child.kill()
        raise
    if child.returncode != 0:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise DuoactorError(f"the models could not be timed by length of input: {last}")
    return msgspec.json.decode(out, type=Lengths)
