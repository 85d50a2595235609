"""The launcher's question to a gateway: only a healthy one's process id is an answer."""

import asyncio
import contextlib
import os

import pytest

from duoactor.launch.supervisor import healthy_pid
from tests.serve.gateway import served


async def test_a_healthy_gateway_answers_with_its_process_id_and_one_without_a_verifier_does_not():
    async with served(patience=0.2) as gateway:
        port = gateway.port
        assert await healthy_pid("127.0.0.1", port) == os.getpid()
        gateway.cluster.stops["verifier"].set()
        await gateway.cluster.tasks["verifier"]
        assert await healthy_pid("127.0.0.1", port) == 0
        gateway.cluster.start_verifier()
    assert await healthy_pid("127.0.0.1", port) == 0


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    monkeypatch.setattr("duoactor.launch.supervisor.HEALTH_TIMEOUT_S", 60.0)


@pytest.mark.parametrize(
    "answer", [b"", b"220 mail.example\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]", b"HTTP/1.1 200\r\n\r\n{}"]
)
async def test_another_server_at_that_port_is_not_taken_for_a_gateway(answer):
    async def reply(reader, writer):
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        assert await healthy_pid(*server.sockets[0].getsockname()) == 0


async def test_an_answer_without_an_end_is_not_read_for_as_long_as_it_comes():
    async def reply(reader, writer):
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server, asyncio.timeout(5.0):
        assert await healthy_pid(*server.sockets[0].getsockname()) == 0
