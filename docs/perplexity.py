"""Perplexity of a served model, counted as llama.cpp's llama-perplexity counts it.

    duoactor up --target model.gguf --drafters 0 --http 127.0.0.1:8000 &
    python docs/perplexity.py
    llama-perplexity -m model.gguf -f manual.txt -c 512 --chunks 40

Windows of 512 tokens, each behind the model's first token if it has one. The second half of a window counts: 40
windows of 20,480 tokens. Without a text it takes Python's own manual, which every Python carries, and writes it to
manual.txt. Figures: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.request import Request, urlopen

WINDOW, FIRST = 512, 256  # tokens of a window; the first that llama-perplexity counts is behind this one
AT_ONCE = 4


def post(url: str, **body: Any) -> Any:
    with urlopen(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def manual(path: Path) -> str:
    path.write_text("\n\n".join(text for _, text in sorted(topics.items())))
    return path.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, help="a text; none: Python's manual")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--windows", type=int, default=40)
    given = parser.parse_args()
    text = given.text.read_text() if given.text else manual(Path("manual.txt"))
    bare = post(f"{given.url}/tokenize", prompt=text, add_special_tokens=False)["tokens"]
    whole = post(f"{given.url}/tokenize", prompt=text)["tokens"]
    begin = whole[: len(whole) - len(bare)]  # what the tokenizer puts in front of a text
    windows = [whole[at : at + WINDOW] for at in range(0, given.windows * WINDOW, WINDOW)]
    windows = [begin + window[len(begin) :] for window in windows if len(window) == WINDOW]
    scores: list[float] = []
    for at in range(0, len(windows), AT_ONCE):
        body = {"prompt": windows[at : at + AT_ONCE], "echo": True, "logprobs": 0, "max_tokens": 0}
        for choice in post(f"{given.url}/v1/completions", **body)["choices"]:
            scores += choice["logprobs"]["token_logprobs"][FIRST + 1 :]
        error = math.exp(-sum(scores) / len(scores)) if scores else math.nan
        print(f"{min(at + AT_ONCE, len(windows))} of {len(windows)} windows: {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
