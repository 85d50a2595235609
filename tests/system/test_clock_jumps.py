"""Real processes whose wall clocks jump: texts stay the target's, and nobody is taken for dead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import httpx2
import pytest

from duoactor import AsyncClient
from protocols.messages import ActorDown, ActorUp, Message
from tests.system.conftest import KEY
from tests.world.wall_clocks import COMPILER, DAY, HOUR

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(COMPILER is None, reason="wall clocks are moved by a library that is compiled, on Linux"),
]
QUESTION = [{"role": "user", "content": "Tell me about a dog that finds a house."}]
JUMPS = (5 * HOUR, -7 * HOUR, 60, -60, 4000 * DAY, -9000 * DAY)  # ahead of the machine's clock, or behind it


def test_a_moved_clock_tells_another_time_and_measures_the_same_durations(clocks):
    code = "import time\nwhile input(): print(time.time() - time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clocks.environment,
    ) as child:  # fmt: skip
        assert child.stdin and child.stdout

        def told() -> float:
            print("?", file=child.stdin, flush=True)
            return float(child.stdout.readline())

        began = told()
        for jump in (*JUMPS, 0):
            clocks.move(child.pid, jump)
            assert told() - began == pytest.approx(jump, abs=10.0)
        child.kill()


def test_a_process_whose_clock_cannot_be_moved_is_told_apart(clocks):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not clocks.reaches(child.pid)
        child.kill()


async def hear(client: AsyncClient, news: list[Message]) -> None:
    """Put on ``news`` which actors came or were taken for dead."""
    async for message in client.telemetry():
        if isinstance(message, ActorUp | ActorDown):
            news.append(message)


async def test_wall_clocks_of_all_actors_jump_while_they_stream_and_it_means_nothing(up, clocks):
    options = {"max_tokens": 120, "ignore_eos": True}
    serving = up.status()
    actors = (serving.verifier, *serving.drafters, serving.controller)
    pids = [up.process.pid, up.gateway(), *(actor.pid for actor in actors)]
    assert all(map(clocks.reaches, pids))
    news: list[Message] = []
    async with AsyncClient(up.address) as client:
        plain = await client.chat(QUESTION, method="vanilla", **options)
        hearing = asyncio.create_task(hear(client, news))
        for _ in range(5):  # on a busy machine a peer may be late for another reason
            news.clear()
            accepted = 0
            jumps = [(pid, ahead) for ahead in JUMPS for pid in pids]
            while jumps:
                ids: list[int] = []
                async for chunk in client.stream(messages=QUESTION, method="pearl", **options):
                    ids += chunk.token_ids
                    if jumps:
                        clocks.move(*jumps.pop(0))
                assert tuple(ids) == plain.token_ids
                accepted += chunk.stats.accepted_tokens
            # Idle, peers are known to live by their heartbeats: none may wait for the time before the jump.
            until = time.monotonic() + 2 * client.welcome.ttl_ms / 1000
            while time.monotonic() < until:
                await client.status()
                await asyncio.sleep(0.05)
            if accepted and not news:
                break
        else:
            pytest.fail(f"no draft was of use, or a peer was taken for dead, each time: {news}")
        hearing.cancel()
    for pid in pids:
        clocks.move(pid, 0)


def test_the_gateway_tells_the_jumped_time_in_its_answers_and_serves_on(up, clocks):
    pid, headers = up.gateway(), {"authorization": f"Bearer {KEY}"}
    asked = {"model": "bundled", "messages": QUESTION, "max_tokens": 20, "temperature": 0.0}
    told = []
    for ahead in (30 * HOUR, -30 * HOUR):
        clocks.move(pid, ahead)
        answer = httpx2.post(f"{up.http}/v1/chat/completions", json=asked, headers=headers, timeout=None).json()
        assert answer["created"] - time.time() == pytest.approx(ahead, abs=HOUR)
        told.append(answer["choices"][0]["message"]["content"])
    assert told[0] == told[1]
    clocks.move(pid, 0)
