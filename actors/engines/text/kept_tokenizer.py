"""A fast tokenizer as an earlier start has kept it: transformers takes seconds to import and build its own.

Beneath both is the same compiled tokenizer, and conversations are rendered by transformers' own function, which is
imported with the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

# A class may compute these in its own way; then it is not kept
COMMON = ("encode", "_encode_plus", "apply_chat_template", "get_chat_template", "get_vocab", "convert_ids_to_tokens")
PROBE = "A line, 12345 and\n\n  <b>Ünïcode</b> 日本語 \U0001f600\t</s><|im_end|><end_of_turn> don't"


@dataclass(frozen=True, slots=True)
class KeptTokenizer:
    """What :class:`FastTokenizer` is made of; without ``backend`` there can be none."""

    backend: str = ""  # text of a tokenizer.json
    chat_template: str | dict[str, str] | None = None
    response_template: Any = None
    special_tokens_map: dict[str, Any] | None = None
    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    eos_token_id: int | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> KeptTokenizer:
        """What is kept of one of transformers'."""
        from transformers import PreTrainedTokenizerFast

        kind = type(tokenizer)
        if not isinstance(tokenizer, PreTrainedTokenizerFast) or getattr(tokenizer, "split_special_tokens", False):
            return cls()
        if any(getattr(kind, name) is not getattr(PreTrainedTokenizerFast, name) for name in COMMON):
            return cls()
        made = cls(
            tokenizer.backend_tokenizer.to_str(),
            tokenizer.chat_template,
            getattr(tokenizer, "response_template", None),
            {name: plainly(token) for name, token in tokenizer.special_tokens_map.items()},
            tuple(map(str, tokenizer.all_special_tokens)),
            tuple(tokenizer.all_special_ids),
            tokenizer.eos_token_id,
        )
        ours = FastTokenizer(made)
        for special in (True, False):
            if ours.encode(PROBE, special) != list(tokenizer.encode(PROBE, add_special_tokens=special)):
                return cls()
        return made


def plainly(token: Any) -> Any:
    return [str(one) for one in token] if isinstance(token, list | tuple) else str(token)


class FastTokenizer:
    """What serving uses of transformers' ``PreTrainedTokenizerFast``, under the same names."""

    def __init__(self, kept: KeptTokenizer) -> None:
        reader = ThreadPoolExecutor(1, "tokenizer")  # 1.5 s for 262,000 entries, while compiled code runs
        self._backend = reader.submit(_backend, kept.backend)
        reader.shutdown(wait=False)
        self.chat_template, self.response_template = kept.chat_template, kept.response_template
        self.special_tokens_map = kept.special_tokens_map or {}
        self.all_special_tokens, self.all_special_ids = list(kept.all_special_tokens), list(kept.all_special_ids)
        self.eos_token_id = kept.eos_token_id

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self._backend.result()

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.backend_tokenizer.id_to_token(token) or "" for token in ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        # a batch, because other threads then go on meanwhile
        (found,) = self.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        (text,), _ = render_jinja_template(
            conversations=[[{key: value for key, value in one.items() if value is not None} for one in messages]],
            tools=tools,
            chat_template=self._template(tools),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{**self.special_tokens_map, **variables},
        )
        return str(text)

    def _template(self, tools: list[dict[str, Any]] | None) -> str:
        found = self.chat_template
        if isinstance(found, dict):
            found = found.get("tool_use" if tools is not None and "tool_use" in found else "default")
        if found is None:
            raise ValueError("the tokenizer has no chat template")
        return found


def _backend(text: str) -> Tokenizer:
    made = Tokenizer.from_str(text)
    made.no_truncation()
    made.no_padding()
    return made
