"""What a connection may send before anybody knows whether it has a key: bounded in bytes, fields, requests and time."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from duoactor.serve.http_limits import MAX_FIELDS, MAX_HEAD, MAX_TARGET
from tests.serve.gateway import TURNS, served
from tests.world.processes import command, free_port, until

GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /ping HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"


async def exchanged(port: int, data: bytes) -> bytes:
    """What is answered until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def dripping(writer: asyncio.StreamWriter, drop: bytes):
    async def drip() -> None:
        while True:
            writer.write(drop)
            await asyncio.sleep(0.01)

    drips = asyncio.create_task(drip())
    yield
    drips.cancel()


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"u" * MAX_TARGET + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /" + b"u" * (1 << 20), 414),
        (GET + b"x: " + b"v" * MAX_HEAD + b"\r\n\r\n", 431),
        (GET + b"x: " + b"v" * (1 << 20), 431),
        (GET + b"x" * (1 << 20), 431),
        (GET + b"x: y\r\n" * MAX_FIELDS + b"\r\n", 431),
        (GET + b"".join(b"x: " + b"v" * 1000 + b"\r\n" for _ in range(18)), 431),
        (CHUNKED + b"0\r\n" + b"x: y\r\n" * MAX_FIELDS, 431),
        (CHUNKED + b"0\r\nx: " + b"v" * (1 << 20), 431),
        (CHUNKED + b"1;" + b"e" * (1 << 20), 431),
        (CHUNKED + b"no number\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
async def test_a_request_beyond_a_limit_is_answered_with_its_status_and_the_connection_ends(data, status):
    async with served(keys=("k",)) as gateway:
        answer = await exchanged(gateway.port, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert statuses(answer) == [status] and b"connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_what_just_fits_is_served():
    fields = b"".join(b"x%d: y\r\n" % number for number in range(MAX_FIELDS - 3))
    large = b"x: " + b"v" * (MAX_HEAD - 200) + b"\r\n"
    async with served() as gateway:
        for head in (fields, large):
            answer = await exchanged(gateway.port, GET + b"Connection: close\r\n" + head + b"\r\n")
            assert statuses(answer) == [200]
        answer = await exchanged(
            gateway.port,
            b"GET /version?" + b"q" * (MAX_TARGET - 100) + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        assert statuses(answer) == [200]


async def test_trailers_are_no_fields_of_the_head():
    body = json.dumps({"messages": TURNS, "max_tokens": 2}).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Api-Key: k\r\n\r\n"
        % (len(body), body)
    )
    async with served() as gateway:
        assert statuses(await exchanged(gateway.port, request)) == [200]
    async with served(keys=("k",)) as gateway:
        assert statuses(await exchanged(gateway.port, request)) == [401]


async def test_a_request_before_the_answer_to_the_last_one_ends_the_connection_after_that_answer():
    async with served() as gateway:
        answer = await exchanged(gateway.port, (GET + b"\r\n") * 20)
    assert statuses(answer) == [200] and b"connection: close" in answer


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_knows_no_chunks_so_a_stream_ends_with_its_connection(stream):
    body = json.dumps({"messages": TURNS, "max_tokens": 8, "stream": stream}).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: keep-alive\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    async with served() as gateway:
        head, _, answer = (await exchanged(gateway.port, request)).partition(b"\r\n\r\n")
        assert b" 200 OK" in head and b"connection: close" in head and b"transfer-encoding" not in head
        if stream:
            assert answer.startswith(b"data: {") and answer.endswith(b"data: [DONE]\n\n")
            assert all(line.startswith(b"data: ") for line in answer.split(b"\n\n")[:-1])
        else:
            assert b"content-length: %d\r\n" % len(answer) in head and json.loads(answer)["choices"]
        head, _, page = (await exchanged(gateway.port, GET.replace(b"1.1", b"1.0") + b"\r\n")).partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(page) in head and json.loads(page)


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes():
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    waits = b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 17000000\r\n\r\n"
    async with served() as gateway, asyncio.timeout(10):
        assert statuses(await exchanged(gateway.port, head + waits)) == [413]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_client_that_sends_no_more_gets_what_it_reads_and_ends_what_it_had_written(version):
    async with served() as gateway:

        async def last(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request.replace(b"1.1", version, 1))
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

        for path in (b"/health", b"/metrics", b"/live/state"):  # these ask the verifier
            assert statuses(await last(GET.replace(b"/version", path) + b"\r\n")) == [200]
        body = json.dumps({"messages": TURNS, "ignore_eos": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert not await last(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await gateway.idle()


async def test_requests_one_after_the_other_share_a_connection():
    async with served() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for _ in range(3):
            writer.write(GET + b"\r\n")
            assert statuses(await reader.readuntil(b"}")) == [200]
        writer.write(b"\r\n" + GET + b"Connection: close\r\n\r\n")  # RFC 9112: an empty line before it is ignored
        assert statuses(await reader.read()) == [200]
        writer.close()


async def test_a_stream_goes_on_while_its_client_sends_what_is_no_request():
    body = json.dumps({"messages": TURNS, "max_tokens": 40, "stream": True, "ignore_eos": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with served() as gateway:
        answer = await exchanged(
            gateway.port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"\x00" * (1 << 20)
        )
        await gateway.idle()
    assert statuses(answer) == [200] and answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", []),
        (GET, [408]),
        (GET + b"\r\n" + GET, [200]),  # the second was sent before the first was answered
    ],
)
async def test_a_head_that_does_not_become_whole_is_given_up(sent, answered, monkeypatch):
    monkeypatch.setattr("duoactor.serve.http_limits.HEAD_S", 0.05)
    async with served() as gateway:
        assert statuses(await exchanged(gateway.port, sent)) == answered


async def test_a_head_that_drips_is_given_up_after_an_answer_too(monkeypatch):
    async with served() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(GET + b"\r\n")
        assert statuses(await reader.readuntil(b"}")) == [200]
        monkeypatch.setattr("duoactor.serve.http_limits.HEAD_S", 0.05)
        writer.write(GET)

        async with dripping(writer, b"x: y\r\n"):
            assert statuses(await reader.readuntil(b"}}")) == [408]
        writer.close()


async def test_a_body_without_end_is_cut_after_the_answer_that_did_not_wait_for_it(monkeypatch):
    monkeypatch.setattr("duoactor.serve.http_limits.HEAD_S", 0.05)
    async with served(keys=("k",)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n")
        assert statuses(await reader.readuntil(b"}}")) == [401]
        async with dripping(writer, b"x" * 1000):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_connections_beyond_the_limit_are_told_so_and_there_is_room_again_when_others_leave(monkeypatch):
    monkeypatch.setattr("duoactor.serve.start.MOST_CONNECTIONS", 8)
    async with served() as gateway:
        held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(7)]
        assert statuses(await exchanged(gateway.port, GET + b"Connection: close\r\n\r\n")) == [200]
        held.append(await asyncio.open_connection("127.0.0.1", gateway.port))
        refused = await exchanged(gateway.port, GET + b"\r\n")
        assert statuses(refused) == [503] and b"connection: close" in refused and b"no room for more" in refused
        told = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        ends = await asyncio.gather(*(reader.read() for reader, _ in told), return_exceptions=True)
        answers = sorted([] if isinstance(end, BaseException) else statuses(end) for end in ends)
        assert answers[:2] == [[], []] and answers[2] in ([], [503])  # far beyond it they are hung up on
        for _, writer in (*held, *told):
            writer.close()
        served_again: list[int] = []
        while served_again != [200]:
            with contextlib.suppress(ConnectionResetError):
                served_again = statuses(await exchanged(gateway.port, GET + b"Connection: close\r\n\r\n"))


# --- a process under attack ------------------------------------------------------------------------------------------


def kilobytes(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.fixture(scope="module")
def gateway_process():
    """Its process id and port. It needs no verifier to be attacked."""
    port = free_port()
    line = command(
        "serve", "--quiet", "--api-key", "k", "--http", f"127.0.0.1:{port}", "--connect", "tcp://127.0.0.1:9"
    )
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as door:
            door.sendall(GET + b"Connection: close\r\n\r\n")
            return door.recv(100).startswith(b"HTTP/1.1 200")
        return False

    until(answers, "the gateway")
    yield process.pid, port
    process.terminate()
    process.wait()


def fields(count: int) -> bytes:
    return b"".join(b"field-%d: %s\r\n" % (number, b"v" * 90) for number in range(count))


ATTACKS = {
    "fields": (1, GET, [fields(2_000)] * 150),  # 30 MB, as all of these
    "one field": (1, GET + b"x: ", [b"v" * (1 << 18)] * 120),
    "trailers": (1, CHUNKED + b"0\r\n", [fields(2_000)] * 150),
    "a URL": (1, b"GET /", [b"u" * (1 << 18)] * 120),
    "requests": (1, b"", [(GET + b"\r\n") * 5_000] * 120),
    "half a head": (500, GET + b"x: " + b"v" * (MAX_HEAD - 300), []),
    "half a head of fields": (500, GET + b"".join(b"x%d: y\r\n" % number for number in range(90)), []),
    "answers that nobody reads": (300, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", []),
    "bodies that nobody asked for": (300, POST + b"Content-Length: 999999999\r\n\r\n", [b"x" * (1 << 16)]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_without_a_key_takes_a_third_more_memory(gateway_process, attack):
    pid, port = gateway_process
    connections, first, rest = ATTACKS[attack]
    idle = kilobytes(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
    with contextlib.ExitStack() as open_doors:
        doors = [open_doors.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        for door in doors:
            with contextlib.suppress(OSError):  # refused is refused
                door.sendall(first)
                for piece in rest:
                    door.sendall(piece)
        with socket.create_connection(("127.0.0.1", port)) as honest:  # what came before it is read by now
            honest.sendall(GET + b"Connection: close\r\n\r\n")
            assert honest.recv(100).startswith(b"HTTP/1.1 200")
        peak = kilobytes(pid, "VmHWM")
    assert peak < 1.3 * idle
