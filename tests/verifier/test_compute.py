"""Where forwards run."""

import asyncio
import os
import sys
import threading

import pytest

from actors.verifier.compute import INLINE_US, TURN_S, InlineCompute, ThreadCompute, runs_inline
from tests.world.clock import run


def test_a_target_of_several_openmp_threads_is_served_by_the_thread_that_built_it():
    assert not runs_inline("cpu", 2, 1_000.0)


def test_a_short_forward_without_openmp_or_on_a_gpu_runs_in_the_event_loop():
    assert runs_inline("cpu", 1, INLINE_US)
    assert runs_inline("cuda:0", 16, 5_000.0)


def test_a_long_forward_leaves_the_event_loop_free():
    assert not runs_inline("cpu", 1, INLINE_US + 1)
    assert not runs_inline("cuda:0", 1, INLINE_US + 1)


def test_the_compute_thread_is_one_and_the_same_for_building_and_serving():
    async def idents() -> list[int]:
        compute = ThreadCompute()
        found = [await compute.start(threading.get_ident) for _ in range(3)]
        compute.close()
        return found

    found = asyncio.run(idents())
    assert len(set(found)) == 1 and threading.get_ident() not in found


def test_short_rounds_in_a_row_leave_the_event_loop_a_turn_as_soon_as_one_is_due():
    async def rounds_by_turn(round_s: float) -> list[int]:
        loop, compute, turns = asyncio.get_running_loop(), InlineCompute(TURN_S), [0]

        def turn() -> None:
            turns.append(0)
            loop.call_soon(turn)

        def forward() -> None:
            loop.now += round_s
            turns[-1] += 1

        loop.call_soon(turn)
        for _ in range(60):
            await compute.start(forward)
        return turns

    assert max(run(rounds_by_turn(TURN_S / 5.5))) == 5
    assert max(run(rounds_by_turn(2 * TURN_S))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_a_thread_that_gives_way_has_a_lower_priority_than_the_others():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def both() -> list[int]:
        found = []
        for compute in (ThreadCompute(), ThreadCompute(gives_way=True)):
            found.append(await compute.start(priority))
            compute.close()
        return found

    plain, giving_way = asyncio.run(both())
    assert plain == priority() < giving_way
