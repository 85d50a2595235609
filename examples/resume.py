"""The same seed gives the same text, whatever happens on the way: swap the drafter, or kill it, while this runs.

Start the actors first:  duoactor up --drafters 2
"""

from duoactor import Client

with Client() as client:
    options = {"max_tokens": 200, "temperature": 0.8, "seed": 7, "ignore_eos": True}
    plain = client.generate("The history of the city begins", method="vanilla", **options)

    drafters = [drafter.actor_id for drafter in client.status().drafters]
    tokens: list[int] = []
    for chunk in client.stream("The history of the city begins", **options):
        tokens += chunk.token_ids
        if len(drafters) > 1 and len(tokens) > 100:
            print(client.swap(drafters.pop(), drafters[0]))
    print("drafted by", ", ".join(chunk.stats.drafters))
    print("same text as without drafts:", tuple(tokens) == plain.token_ids)
