"""Issue 9, point 1, as its user meets it: a drafter that needs long to read a document, in a process of its own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from duoactor import Client

pytestmark = pytest.mark.processes
SLOW_ACTOR = Path(__file__).with_name("slow_actor.py")
WAIT_S = 120  # for processes to load a model on a busy machine; only a hang reaches it
PROMPT = tuple(100 + 7 * i % 5000 for i in range(500))
READING_S = 5.0


def started(role: str, address: str, milliseconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(SLOW_ACTOR), role, address, str(milliseconds)])


def test_a_prompt_whose_draft_prefill_outlasts_the_time_to_live_streams_with_drafts(tmp_path):
    address = f"ipc://{tmp_path}/run/v.ipc"
    actors = [
        started("verifier", address, 2000 * READING_S / len(PROMPT)),  # the drafter reads twice as fast as it writes
        started("drafter", address, READING_S * 1000 / len(PROMPT)),
    ]
    try:
        with Client(address, timeout=WAIT_S) as client:
            end = time.monotonic() + WAIT_S
            while not client.status().drafters:
                assert time.monotonic() < end, "waited in vain for a drafter"
                time.sleep(0.05)
            accepted: list[tuple[float, int]] = []
            begin = time.monotonic()
            stream = client.stream(PROMPT, method="pearl", max_tokens=1400, ignore_eos=True)
            for chunk in stream:
                accepted.append((time.monotonic() - begin, sum(chunk.accepted)))
                if sum(count for _, count in accepted) >= 50:
                    break
            stream.close()
            first = next(at for at, count in accepted if count)
            assert first > 0.8 * READING_S, "the drafter was not slow: nothing was tested"
            assert sum(count for _, count in accepted) >= 50
            [drafter] = client.status().drafters
            assert drafter.actor_id == "slow"
    finally:
        for actor in actors:
            actor.kill()
            actor.wait()
