r"""A conversation in a loop: each answer joins the messages, and the verifier keeps what it has computed of them.

Start the actors first:  duoactor up
Then:                    python examples/chat_loop.py
Or:                      printf 'Hello!\nWhat can you do?\n' | python examples/chat_loop.py
"""

from duoactor import Client, DuoactorError

messages: list[dict[str, str]] = []
try:
    with Client() as client:
        while True:
            try:
                messages.append({"role": "user", "content": input("> ")})
            except EOFError:
                break
            text = ""
            for chunk in client.stream(messages=messages, max_tokens=100, temperature=0.7):
                print(chunk.text, end="", flush=True)
                text += chunk.text
            print()
            messages.append({"role": "assistant", "content": text})
except DuoactorError as error:
    raise SystemExit(str(error)) from None
