"""The client: it streams text, and resumes the stream if the verifier dies.

python examples/nano/client.py "The for statement" [--temperature T] [--seed S] [--vanilla]
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator

import wire
from line import Line


async def stream(address: str, prompt, sampling: wire.Sampling, method: str = "") -> AsyncIterator[wire.Chunk]:
    """The chunks of an answer. Noise is keyed by position, so a resumed stream goes on as it would have."""
    line = Line(address, "client", wire.ToClient)
    beating = asyncio.ensure_future(line.beat())
    have: list[int] = []
    try:
        while True:
            message = await line.receive()
            if isinstance(message, wire.Welcome):
                line.send(wire.Generate("r", prompt, sampling=sampling, method=method, generated=tuple(have)))
            elif isinstance(message, wire.Failed):
                raise SystemExit(message.detail)
            elif isinstance(message, wire.Chunk) and message.offset == len(have):
                have += message.token_ids
                yield message
                if message.finish_reason:
                    return
    finally:
        beating.cancel()
        line.close()


async def main(options: argparse.Namespace) -> None:
    sampling = wire.Sampling(temperature=options.temperature, seed=options.seed, max_tokens=options.max_tokens)
    began, tokens, accepted = time.monotonic(), 0, 0
    async for chunk in stream(options.connect, options.prompt, sampling, "vanilla" if options.vanilla else ""):
        print("".join(chunk.pieces), end="", flush=True)
        tokens, accepted = tokens + len(chunk.token_ids), accepted + sum(chunk.accepted)
    rate = tokens / (time.monotonic() - began)
    print(f"\n\n{rate:.0f} tokens/s; {accepted} of {tokens} tokens were drafts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--connect", default="tcp://127.0.0.1:7601")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--vanilla", action="store_true", help="the target alone")
    asyncio.run(main(parser.parse_args()))
