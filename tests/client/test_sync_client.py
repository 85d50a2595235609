"""The blocking client over a real socket: threads, interrupts, forks, and streams that nobody reads."""

import asyncio
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from duoactor import Client, ConnectionLost, Sampling
from protocols.zeromq import ZmqNetwork
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
TRUTH = LANGUAGE.continuation(PROMPT, Sampling(max_tokens=100))
LONG = 4000


class Server:
    """A verifier with a toy target, on a thread of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cluster = Cluster(language=LANGUAGE)
        self._ready, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    def listen(self, address: str):
        return self._network.listen(self.address)

    async def _serve(self) -> None:
        self._network = ZmqNetwork()
        self.cluster.network = self
        async with self.cluster:
            self._ready.set()
            while not self._done.is_set():
                await asyncio.sleep(0.01)
        self._network.close()

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc) -> None:
        self._done.set()
        self._thread.join(10)

    def slow_down(self) -> None:
        verify = self.cluster.target.verify

        def slow(windows):
            time.sleep(0.005)
            return verify(windows)

        self.cluster.target.verify = slow

    def idle(self) -> bool:
        return not self.cluster.target.kv_used


@pytest.fixture
def server(tmp_path):
    with Server(f"ipc://{tmp_path}/run/v.ipc") as server:
        yield server


def soon(condition) -> None:
    """Wait until it holds; never for long."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never happened")


def interrupt_once(condition) -> None:
    soon(condition)
    os.kill(os.getpid(), signal.SIGINT)


def test_it_streams_over_a_real_socket(server):
    with Client(server.address) as client:
        assert [t for c in client.stream(PROMPT, max_tokens=100) for t in c.token_ids] == TRUTH
        assert list(client.generate(PROMPT, max_tokens=100).token_ids) == TRUTH
        assert client.status().target.model_id == "toy"
    with pytest.raises(ConnectionLost, match="the client was closed; make a new one"):
        client.status()


def test_nobody_at_the_address_is_known_at_once_and_every_time(tmp_path):
    begin = time.monotonic()
    client = Client(f"ipc://{tmp_path}/nobody.ipc")
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="no verifier answers"):
            client.status()
    client.close()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("how", ["loop left", "dropped", "closed", "block left"])
def test_a_stream_that_is_done_with_is_cancelled_at_once(server, how):
    server.slow_down()
    with Client(server.address) as client:
        if how == "loop left":
            for _ in client.stream(PROMPT, max_tokens=LONG):
                break
        elif how == "block left":
            with client.stream(PROMPT, max_tokens=LONG) as stream:
                next(stream)
        else:
            stream = client.stream(PROMPT, max_tokens=LONG)
            next(stream)
            assert not server.idle()
            if how == "closed":
                stream.close()
                assert list(stream) == []
            else:
                del stream
                gc.collect()
        soon(server.idle)


def test_many_threads_may_use_one_client(server):
    answers = {}
    with Client(server.address) as client:

        def ask(number: int) -> None:
            answers[number] = list(client.generate(PROMPT, max_tokens=20 + number).token_ids)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert answers == {number: TRUTH[: 20 + number] for number in range(12)}


def test_several_threads_may_read_one_stream(server):
    offsets = []
    with Client(server.address) as client:
        stream = client.stream(PROMPT, max_tokens=100)

        def read() -> None:
            for chunk in stream:
                offsets.extend(range(chunk.offset, chunk.offset + len(chunk.token_ids)))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(offsets) == list(range(100))


def test_closing_the_client_ends_calls_that_wait_in_other_threads(server):
    server.slow_down()
    client = Client(server.address)
    stream = client.stream(PROMPT, max_tokens=LONG)
    next(stream)
    raised = []

    def read() -> None:
        try:
            list(stream)
        except ConnectionLost as error:
            raised.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    client.close()
    thread.join(10)
    assert not thread.is_alive() and raised and "closed" in raised[0]
    client.close()
    soon(server.idle)


def test_a_client_that_is_dropped_leaves(server):
    before = set(threading.enumerate())
    client = Client(server.address)
    client.status()
    assert server.cluster.verifier.state.clients
    del client
    gc.collect()
    soon(lambda: not server.cluster.verifier.state.clients)
    soon(lambda: set(threading.enumerate()) == before)


@pytest.mark.parametrize(
    ("home", "name", "error"),
    [
        (asyncio.get_event_loop_policy(), "new_event_loop", OSError(24, "Too many open files")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_client_whose_event_loop_cannot_be_made_says_so_and_leaves_no_thread(server, monkeypatch, home, name, error):
    def threads() -> int:
        return sum(thread.name == "duoactor-client" for thread in threading.enumerate())

    before, client = threads(), Client(server.address)
    with monkeypatch.context() as scarce:
        scarce.setattr(home, name, Mock(side_effect=error))
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=re.escape(f"the client cannot begin ({error})")):
                client.status()
    assert threads() == before
    assert client.status().target.model_id == "toy"
    client.close()
    assert threads() == before


@pytest.mark.parametrize("used", [False, True])
def test_a_client_that_could_not_begin_can_be_closed(server, monkeypatch, used):
    client = Client(server.address)
    if used:
        with monkeypatch.context() as scarce, pytest.raises(ConnectionLost):
            scarce.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
            client.status()
    client.close()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        client.status()


@pytest.fixture
def interruptible():
    """Whoever runs the tests may have been started in a script's background, where interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_loses_nothing_of_a_stream_and_cancels_a_call(server):
    server.slow_down()
    with Client(server.address) as client:
        stream = client.stream(PROMPT, max_tokens=100)
        ids = []
        for delay in itertools.chain([0.03, 0.01], itertools.repeat(None)):
            if delay is not None:
                threading.Timer(delay, os.kill, [os.getpid(), signal.SIGINT]).start()
            try:
                for chunk in stream:
                    ids += chunk.token_ids
                break
            except KeyboardInterrupt:
                continue
        assert ids == TRUTH
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=interrupt_once, args=[lambda: not server.idle()]).start()
            client.generate(PROMPT, max_tokens=LONG)
        soon(server.idle)


def test_a_client_does_not_survive_a_fork_and_its_parent_does_not_notice(server):
    with Client(server.address) as client:
        stream = client.stream(PROMPT, max_tokens=100)
        ids = list(next(stream).token_ids)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.status()
            except ConnectionLost as error:
                code = 0 if "does not survive a fork" in str(error) else 2
            client.close()
            del stream, client
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [*ids, *(t for c in stream for t in c.token_ids)] == TRUTH


SCRIPT = """
import asyncio, sys
from duoactor import AsyncClient, Client
address, kind = sys.argv[1:]
if kind == "sync":
    client = Client(address)
    stream = client.stream((5, 9, 33), max_tokens=4000)
    print(len(next(stream).token_ids) > 0)
else:
    async def main():
        client = AsyncClient(address)
        stream = client.stream((5, 9, 33), max_tokens=4000)
        print(len((await stream.__anext__()).token_ids) > 0)
        return client, stream
    kept = asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_program_that_closes_nothing_ends_cleanly_and_says_goodbye(server, kind):
    server.slow_down()
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, server.address, kind], capture_output=True, text=True, timeout=20
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "True\n", "")
    soon(lambda: server.idle() and not server.cluster.verifier.state.clients)
