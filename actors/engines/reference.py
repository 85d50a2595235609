"""The yardstick: stock ``transformers`` generate on the same model, dtype and threads.

Run as a program (``python -m actors.engines.reference``) it reads one JSON document on stdin and prints one.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Task(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    prompts: list[str]  # each is wrapped in the model's chat template
    max_tokens: int
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    cpus: str = ""
    repeats: int = 1


class Result(msgspec.Struct, kw_only=True):
    tokens_per_second: float
    tokens: list[int]  # per prompt
    seconds: list[float]  # per prompt, the median of the repeats, prefill included
    token_ids: list[list[int]]


def measure(task: Task) -> Result:
    """Greedy decoding of each prompt, one at a time; one untimed warm-up."""
    if task.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in task.cpus.split(",")})
    torch.set_num_threads(task.threads)
    tokenizer = AutoTokenizer.from_pretrained(task.model)
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=getattr(torch, task.dtype)).to(task.device).eval()
    inputs = [encode(tokenizer, prompt).to(task.device) for prompt in task.prompts]

    def run(ids: torch.Tensor) -> tuple[float, list[int]]:
        started = time.perf_counter()
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=task.max_tokens, do_sample=False
        )
        made: list[int] = output[0, ids.shape[1] :].tolist()  # reading it back waits for the device
        return time.perf_counter() - started, made

    with torch.inference_mode():
        run(inputs[0])
        runs = [[run(ids) for ids in inputs] for _ in range(task.repeats)]
    seconds = [statistics.median(repeat[number][0] for repeat in runs) for number in range(len(inputs))]
    texts = [made for _, made in runs[0]]
    return Result(
        tokens_per_second=sum(map(len, texts)) / sum(seconds),
        tokens=[len(made) for made in texts],
        seconds=seconds,
        token_ids=texts,
    )


def encode(tokenizer: AutoTokenizer, prompt: str) -> torch.Tensor:
    """Token ids of shape (1, length)."""
    if tokenizer.chat_template is None:
        ids = tokenizer(prompt)["input_ids"]
    else:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # the template writes the BOS itself
    return torch.tensor([ids])


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    with contextlib.redirect_stdout(sys.stderr):
        result = measure(task)
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
