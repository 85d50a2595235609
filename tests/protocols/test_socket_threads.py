"""libzmq's own threads keep off the CPUs that compute."""

import asyncio
import os
from pathlib import Path

import pytest

from actors.process import cpus_beside
from protocols.messages import Cancel
from protocols.wire import encode
from protocols.zeromq import ZmqNetwork

TASKS = Path("/proc/self/task")


@pytest.mark.parametrize(
    ("cpus", "others"), [("0", {1, 2}), ("0,2", {1}), ("0,1,2", set()), ("7", {0, 1, 2}), ("", set())]
)
def test_sockets_are_served_where_nothing_is_computed(monkeypatch, cpus, others):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert cpus_beside(cpus) == others


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are looked up in Linux's /proc")
def test_a_network_has_its_threads_on_the_cpus_that_it_is_given():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one CPU")

    async def main():
        before = set(os.listdir(TASKS))
        network = ZmqNetwork(cpus={max(allowed)})
        listener = network.listen("tcp://127.0.0.1:0")
        link = network.connect(listener.address)
        await link.writable()
        link.send(encode(Cancel("1")))
        await listener.receive()  # the thread has read it: it has begun
        placed = [os.sched_getaffinity(int(task)) for task in set(os.listdir(TASKS)) - before]
        network.close()
        assert {max(allowed)} in placed

    asyncio.run(main())
