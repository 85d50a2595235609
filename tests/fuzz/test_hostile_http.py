"""The hostile HTTP client itself."""

import asyncio

from tests.serve.hostile_http import HostileHttp


async def test_as_many_requests_are_sent_over_http_as_were_asked_for_unless_it_is_over(tmp_path):
    connections = 0

    async def swallow(reader, writer):
        nonlocal connections
        connections += 1
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    http = HostileHttp(server.sockets[0].getsockname()[1], 1, tmp_path)
    assert await http.rave(100, lambda: False) == 100 == http.sent
    before = connections
    assert before > 1
    assert await http.rave(100, lambda: True) == 0 and connections == before
    server.close()
