"""Stock ``transformers`` generate as a server, one request at a time, for :mod:`duoactor.bench.reference`.

Run as a program (``python -m actors.engines.measuring.reference``) it reads :class:`ReferenceOptions` as one line of
JSON on stdin and answers with a :class:`Ready`; then each line is a :class:`Ask` that is answered by a :class:`Reply`.
Between two requests it sleeps in ``read``, so that it takes no time from others. The end of stdin ends it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, TextIO

import msgspec
import torch

from actors.engines.text.tokenizer import TokenizerCodec
from actors.engines.weights.draft_vocabulary import with_whole_head
from actors.engines.weights.dtypes import DTYPES
from actors.engines.weights.loading import load_model, load_tokenizer
from actors.process import pin
from protocols.errors import DuoactorError, RequestError
from protocols.messages import ChatTurn

PROMPT_LOOKUP_TOKENS = 10


class ReferenceOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    target: str
    draft: str = ""  # empty: no mode "assisted"
    dtype: str = "float32"  # the verifier's target's; in place of int8, which transformers has not, bfloat16
    device: str = "cpu"
    threads: int = 1
    cpus: str = ""


class Ready(msgspec.Struct, kw_only=True):
    device: str  # such as "cpu" or the name of a GPU
    torch: str
    error: str = ""


class Ask(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``turns`` are role and content by turns."""

    turns: list[tuple[str, str]]
    mode: Literal["plain", "assisted", "prompt_lookup"] = "plain"
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0


class Reply(msgspec.Struct, kw_only=True):
    """Times in ms from the request; ``error`` is one sentence, and then nothing else counts."""

    token_ids: list[int] = []
    text: str = ""
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    error: str = ""


class Clock:
    """A streamer as generate wants it: notes when the first new token is there."""

    def __init__(self) -> None:
        self.calls = 0
        self.first = 0.0

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:  # the first call hands over the prompt
            self.first = time.perf_counter()

    def end(self) -> None: ...


class Generator:
    """Both models, loaded once."""

    def __init__(self, load: ReferenceOptions) -> None:
        torch.set_num_threads(load.threads)
        device, dtype = torch.device(load.device), DTYPES.get(load.dtype, torch.bfloat16)
        tokenizer = load_tokenizer(load.target)
        self.codec = TokenizerCodec(tokenizer)
        target: Any = load_model(load.target, device, dtype)
        draft: Any = with_whole_head(load_model(load.draft, device, dtype)) if load.draft else None
        self.target, self.draft = target, draft
        self.device = device
        self.extra: dict[str, Any] = {}
        if draft is not None and draft.config.vocab_size != target.config.vocab_size:
            self.extra = {"tokenizer": tokenizer, "assistant_tokenizer": load_tokenizer(load.draft)}

    def encode(self, turns: list[tuple[str, str]]) -> list[int]:
        try:
            return self.codec.chat([ChatTurn(role, content) for role, content in turns])
        except RequestError as error:
            if error.code != "unsupported":
                raise
            return self.codec.encode("\n\n".join(content for _, content in turns))

    def answer(self, ask: Ask) -> Reply:
        options: dict[str, Any] = {"do_sample": False}
        if ask.temperature > 0:
            # all other knobs off, as in our own Sampling
            options = {"do_sample": True, "temperature": ask.temperature, "top_k": 0, "top_p": 1.0}
            torch.manual_seed(ask.seed)
        if ask.mode == "assisted":
            options |= {"assistant_model": self.draft, **self.extra}
        elif ask.mode == "prompt_lookup":
            options["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS
        clock = Clock()
        started = time.perf_counter()
        ids = torch.tensor([self.encode(ask.turns)], device=self.device)
        output = self.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=ask.max_tokens, streamer=clock, **options
        )
        made: list[int] = output[0, ids.shape[1] :].tolist()  # reading it back waits for the device
        ended = time.perf_counter()
        first = clock.first or ended
        return Reply(
            token_ids=made,
            text=self.codec.decode(made),
            ttft_ms=1000 * (first - started),
            total_ms=1000 * (ended - started),
        )


def serve(lines: TextIO, out: Callable[[bytes], None]) -> None:
    """Answer until ``lines`` ends."""
    first = lines.readline()
    if not first:
        return
    load = msgspec.json.decode(first, type=ReferenceOptions)
    pin(load.cpus)
    try:
        generator = Generator(load)
    except DuoactorError as error:
        out(msgspec.json.encode(Ready(device="", torch="", error=str(error))))
        return
    name = torch.cuda.get_device_name(generator.device) if generator.device.type == "cuda" else str(generator.device)
    out(msgspec.json.encode(Ready(device=name, torch=str(torch.__version__))))
    decoder = msgspec.json.Decoder(Ask)
    with torch.inference_mode():
        for line in lines:
            try:
                reply = generator.answer(decoder.decode(line))
            except Exception as error:
                # a mode that this model or version of transformers cannot do is a row without figures, not the end
                first_line = (str(error).splitlines() or [""])[0]
                reply = Reply(error=f"{type(error).__name__}: {first_line}")
            out(msgspec.json.encode(reply))


def main() -> int:
    stdout = sys.stdout

    def out(document: bytes) -> None:
        stdout.write(document.decode() + "\n")
        stdout.flush()

    with contextlib.redirect_stdout(sys.stderr):
        serve(sys.stdin, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
