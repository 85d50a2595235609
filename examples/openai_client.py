"""The stock OpenAI client against a gateway; ask for more with extra_body.

Start the actors first:  duoactor up
Then:                    pip install openai
Then:                    python examples/openai_client.py "What is speculative decoding?"
"""

import sys

import openai

client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
try:
    model = client.models.list().data[0].id
except openai.APIConnectionError:
    raise SystemExit("no gateway there: start `duoactor up`") from None
question = " ".join(sys.argv[1:]) or "What is speculative decoding?"

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=100,
    seed=1,
    stream=True,
    extra_body={"method": "auto"},  # or {"speculative": False}: the same text, slower
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)

metrics = chunk.model_extra["metrics"]
drafts = metrics["speculative_decoding"]
print(
    f"\n\n{metrics['tokens_per_second']:.0f} tokens/s, {drafts['mean_acceptance_length']:.2f} tokens per target forward"
)
