"""Stream an answer, and see which tokens were guessed by the draft model.

Start the actors first:  duoactor up
Then:                    python examples/stream.py "def factorial(n):"
"""

import sys

from duoactor import Client, DuoactorError

prompt = " ".join(sys.argv[1:]) or "def factorial(n):"
try:
    with Client() as client:
        for chunk in client.stream(prompt, max_tokens=100):
            for piece, guessed in zip(chunk.pieces, chunk.accepted, strict=True):
                print(f"\033[32m{piece}\033[0m" if guessed else piece, end="", flush=True)
        stats = chunk.stats
        rate = 1000 * (stats.completion_tokens - 1) / max(stats.decode_ms, 1e-9)
        length = 1 + stats.accepted_tokens / max(1, stats.rounds)
        print(f"\n\n{rate:.0f} tokens/s, {length:.2f} tokens per target forward")
except DuoactorError as error:
    raise SystemExit(str(error)) from None
