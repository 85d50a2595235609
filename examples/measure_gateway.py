"""What HTTP costs: the same answers through the gateway and through the Python client, in turns.

Start the actors first:  duoactor up
Then:                    python examples/measure_gateway.py 1 16 64

For each number of streams at once it prints the median time to the first token, tokens per second of all streams
together, and the gateway's share of one core, for both ways.
"""

import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from pathlib import Path

from duoactor import AsyncClient, DuoactorError

GATEWAY = "127.0.0.1:8000"
HOST, PORT = GATEWAY.split(":")
ASK = {"max_tokens": 100, "temperature": 0.7, "ignore_eos": True}
TURNS = [{"role": "user", "content": "Tell me a story about a dog that finds a house in the wood."}]
PAIRS = {1: 12, 16: 4, 64: 5}  # pairs of runs, one each way; many streams say much in one run


async def by_http(seed: int) -> tuple[float, float, int]:
    """Seconds to the first token and to the last, and the number of tokens."""
    asked = {"messages": TURNS, "seed": seed, "cache_salt": uuid.uuid4().hex, **ASK}
    body = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **asked})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
    first = last = 0.0
    tokens = 0
    async for line in reader:
        if b'"content":"' in line and b'"content":""' not in line:
            last = time.perf_counter()
            first = first or last
        if b'"completion_tokens":' in line:
            tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    writer.close()
    return first - began, last - began, tokens


async def by_client(client: AsyncClient, seed: int) -> tuple[float, float, int]:
    began = time.perf_counter()
    first = last = 0.0
    tokens = 0
    async for chunk in client.stream(messages=TURNS, seed=seed, cache_salt=uuid.uuid4().hex, **ASK):
        last = time.perf_counter()
        first = first or last
        tokens += len(chunk.token_ids)
    return first - began, last - began, tokens


async def gateway_cpu() -> float:
    """Seconds of processor time that the gateway has used."""
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    pid = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])["pid"]
    writer.close()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()  # noqa: ASYNC240
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main(counts: list[int]) -> None:
    async with AsyncClient() as client:
        for count in counts:
            firsts = {"HTTP": [], "client": []}
            rates = {"HTTP": [], "client": []}
            shares = []
            pairs = PAIRS.get(count, 3)
            for number in range(2 * pairs + 2):
                way = "HTTP" if number % 2 else "client"
                seeds = range(number // 2 * count, (number // 2 + 1) * count)  # the same for both ways
                cpu, began = await gateway_cpu(), time.perf_counter()
                found = await asyncio.gather(*(by_http(s) if way == "HTTP" else by_client(client, s) for s in seeds))
                took = time.perf_counter() - began
                if number < 2:
                    continue  # to warm up
                firsts[way].append(statistics.median(first for first, _, _ in found))
                # one stream: between its first and last token; several: all tokens over the whole time
                rates[way].append(
                    (found[0][2] - 1) / (found[0][1] - found[0][0])
                    if count == 1
                    else sum(n for _, _, n in found) / took
                )
                if way == "HTTP":
                    shares.append((await gateway_cpu() - cpu) / took)
            ratios = [a / b for a, b in zip(rates["HTTP"], rates["client"], strict=True)]
            delays = [a - b for a, b in zip(firsts["HTTP"], firsts["client"], strict=True)]
            for way in ("client", "HTTP"):
                first, rate = statistics.median(firsts[way]) * 1000, statistics.median(rates[way])
                print(f"{count:>3} at once, {way:<6}  first token {first:7.1f} ms   {rate:7.1f} tokens/s")
            print(
                f"    HTTP: first token {statistics.median(delays) * 1000:+.1f} ms, tokens/s "
                f"{statistics.median(ratios) - 1:+.1%} (medians of {pairs} pairs), "
                f"gateway {statistics.median(shares):.1%} of a core",
                flush=True,
            )


try:
    asyncio.run(main([int(count) for count in sys.argv[1:]] or [1, 16, 64]))
except DuoactorError as error:
    raise SystemExit(str(error)) from None
except OSError as error:
    raise SystemExit(f"no gateway at {GATEWAY} ({error}): start `duoactor up --http {GATEWAY}`") from None
