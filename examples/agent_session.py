"""Does what earlier requests left behind speed up later ones? The same requests with and without it, in turns.

An agent's session: one system prompt and four tasks, each asked five times as it is tried again (`agent`), or with a
number that differs, which turns the bundled model's answers into others more often than not (`varied`); or the built-in
suite's prompts, which have nothing in common (`unrelated`). A request asked "with" shares the prefix cache and the
memory of ended texts with those before it; one asked "without" has a cache_salt of its own. Texts must be equal.

Start the actors first:  duoactor up
Then:                    python examples/agent_session.py agent
Not run by the tests: it takes a minute.
"""

import statistics
import sys
import uuid
from importlib.resources import files

import msgspec

from duoactor import Client, DuoactorError

SYSTEM = "You are a careful assistant who works step by step and answers with the finished result only.\n" + "\n".join(
    f"Tool {name}: {what} Call it with a JSON object, wait for its result, and never call it twice with the same input."
    for name, what in (
        ("read_file", "returns the lines of a file, with numbers in front of them, from the first line to the last."),
        ("write_file", "replaces the whole content of a file, and makes its folders if they are not there yet."),
        ("list_folder", "returns the names of the files and folders that a folder holds, in order of their names."),
        ("search", "returns every line of every file that holds the given text, with the name of the file."),
        ("run_tests", "runs the tests of a folder, and returns which of them failed and what they printed."),
        ("web_page", "returns the text of a page by its address, without menus, pictures and advertisements."),
        ("remember", "keeps a note for later steps under a name; an older note of the same name is replaced."),
        ("ask_user", "shows a question to the user, and returns the answer in the user's own words."),
    )
)
TASKS = (
    "Complete the following Python function.\ndef mean(numbers):\n    '''Return the mean of the numbers.'''",
    "Write a short note that thanks a colleague for her help with the report.",
    "Tom has 12 apples. He gives 5 to Ann and buys 8 more. How many apples does he have? Show your work.",
    "List the steps to make a cup of tea.",
)
ATTEMPTS = 5
Chats = list[list[dict[str, str]]]


def agent() -> Chats:
    return [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        for _ in range(ATTEMPTS)
        for task in TASKS
    ]


def varied() -> Chats:
    return [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Attempt {attempt}.\n{task}"}]
        for attempt in range(1, ATTEMPTS + 1)
        for task in TASKS
    ]


def unrelated() -> Chats:
    chats = []
    for file in sorted((files("duoactor.bench") / "prompts").iterdir(), key=lambda file: file.name):
        lines = file.read_text().splitlines()[:4]
        chats += [[{"role": "user", "content": msgspec.json.decode(line)["turns"][0]}] for line in lines]
    return chats


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "agent"
    chats = {"agent": agent, "varied": varied, "unrelated": unrelated}[kind]()
    first: dict[str, list[float]] = {"with": [], "without": []}
    decode: dict[str, list[float]] = {"with": [], "without": []}
    tokens = {"with": 0, "without": 0}
    shared = uuid.uuid4().hex
    with Client() as client:
        client.chat(chats[0], max_tokens=20, cache_salt=uuid.uuid4().hex)
        for number, messages in enumerate(chats):
            texts = set()
            for arm in ("with", "without") if number % 2 else ("without", "with"):
                salt = shared if arm == "with" else uuid.uuid4().hex
                answer = client.chat(messages, max_tokens=120, temperature=0, cache_salt=salt)
                texts.add(answer.text)
                first[arm].append(answer.stats.time_to_first_token_ms)
                decode[arm].append(answer.stats.decode_ms)
                tokens[arm] += answer.stats.completion_tokens - 1
            if len(texts) > 1:
                sys.exit(f"the texts differ: {texts}")
    rates = {arm: tokens[arm] / sum(times) * 1000 for arm, times in decode.items()}
    for arm in ("without", "with"):
        print(f"{arm:8} {rates[arm]:6.0f} tokens/s, first token in {statistics.median(first[arm]):.0f} ms (median)")
    print(f"{kind}: {len(chats)} requests each, ratio of tokens/s {rates['with'] / rates['without']:.2f}")


if __name__ == "__main__":
    try:
        main()
    except DuoactorError as error:
        raise SystemExit(str(error)) from None
