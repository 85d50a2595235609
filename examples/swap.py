"""A drafter is swapped for another in the middle of a stream, and the text stays what the target alone would write.

Start the actors first:  duoactor up --drafters 2
Then:                    python examples/swap.py
"""

from duoactor import Client, DuoactorError

MESSAGES = [{"role": "user", "content": "Tell me a story about a dog that finds a house in the wood."}]
OPTIONS = {"max_tokens": 160, "temperature": 0.4, "seed": 7, "ignore_eos": True}
COLOURS = ["\033[32m", "\033[36m"]  # colours of the first and the second drafter's tokens; the target's are plain

try:
    with Client() as client:
        if len(client.status().drafters) < 2:
            raise SystemExit("this needs two drafters: start the actors with `duoactor up --drafters 2`")
        alone = client.chat(MESSAGES, method="vanilla", **OPTIONS)  # the same seed, without drafts

        tokens: list[int] = []
        swapped = False
        for chunk in client.stream(messages=MESSAGES, method="tree", **OPTIONS):
            for piece, guessed in zip(chunk.pieces, chunk.accepted, strict=True):
                print(f"{COLOURS[swapped]}{piece}\033[0m" if guessed else piece, end="", flush=True)
            tokens += chunk.token_ids
            if not swapped and len(tokens) > 80:
                status = client.status()
                for old in (request.drafter for request in status.requests if request.drafter):
                    new = next(drafter.actor_id for drafter in status.drafters if drafter.actor_id != old)
                    print(f"\n[{client.swap(old, new)}]")
                    swapped = True
except DuoactorError as error:
    raise SystemExit(str(error)) from None

print("\n\ndrafted by", " and ".join(chunk.stats.drafters))
assert tuple(tokens) == alone.token_ids
print("the same text as without drafts")
