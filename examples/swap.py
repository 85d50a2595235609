"""A drafter is swapped for another in the middle of a stream, and the text stays what the target alone would write.

Start the actors first:  duoactor up --drafters 2
Then:                    python examples/swap.py
"""

from duoactor import Client

MESSAGES = [{"role": "user", "content": "Tell me a story about a dog that finds a house in the wood."}]
OPTIONS = {"max_tokens": 160, "temperature": 0.4, "seed": 7, "ignore_eos": True}
COLOURS = ["\033[32m", "\033[36m"]  # of tokens that the first and the second drafter guessed; the target's are plain

with Client() as client:
    alone = client.chat(MESSAGES, method="vanilla", **OPTIONS)  # the same seed, without drafts

    tokens: list[int] = []
    swapped = False
    for chunk in client.stream(messages=MESSAGES, method="tree", **OPTIONS):
        for piece, guessed in zip(chunk.pieces, chunk.accepted, strict=True):
            print(f"{COLOURS[swapped]}{piece}\033[0m" if guessed else piece, end="", flush=True)
        tokens += chunk.token_ids
        if not swapped and len(tokens) > 80:
            request = next(request for request in client.status().requests if request.drafter)
            other = next(d.actor_id for d in client.status().drafters if d.actor_id != request.drafter)
            print(f"\n[{client.swap(request.drafter, other)}]")
            swapped = True

print("\n\ndrafted by", " and ".join(chunk.stats.drafters))
assert tuple(tokens) == alone.token_ids
print("the same text as without drafts")
