"""The tokenizer of a model: as the verifier uses it, and the digests by which two of them are compared."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.engines.text.chat_template import RENDERING, ChatTemplate
from actors.engines.text.kept_tokenizer import plainly
from actors.engines.text.longest import fewest_tokens
from actors.engines.text.plain import Plain, encode_behind, octets_by, octets_of
from actors.models import Vocabulary, too_long
from protocols.errors import RequestError
from protocols.messages import ChatTurn, FailureCode, Rendering, Thinking, TokenizerParts


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """A tokenizer's facts for peers and clients. It takes seconds to find out of a large vocabulary."""

    digest: str
    parts: TokenizerParts
    tool_form: str  # see ``Welcome``
    response_template: str  # see ``Welcome``
    thinking: Thinking  # see ``Welcome``

    @classmethod
    def of(cls, tokenizer: Any) -> TokenizerFacts:
        template = ChatTemplate(tokenizer)
        parts = tokenizer_parts(tokenizer)
        forms = template.tool_form, template.response_template, template.thinking
        return cls(tokenizer_digest(tokenizer), parts, *forms)


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 over vocabulary and merges. It is equal for tokenizers that make the same ids of a text."""
    content: dict[str, Any] = {"vocab": _vocabulary(tokenizer)}
    if (merges := _merges(tokenizer)) is not None:
        content["merges"] = merges
    return _sha256(content).hexdigest()


def tokenizer_parts(tokenizer: Any) -> TokenizerParts:
    """What :func:`tokenizer_digest` is made of, part by part."""
    vocabulary = _vocabulary(tokenizer)
    by_block: dict[int, list[tuple[str, int]]] = {}
    for entry in vocabulary:
        by_block.setdefault(entry[1] // TokenizerParts.BLOCK, []).append(entry)
    blocks = (
        _sha256(by_block.get(block, [])).digest()[: TokenizerParts.WIDTH]
        for block in range(max(by_block, default=-1) + 1)
    )
    special = sorted(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return TokenizerParts(
        len(vocabulary), b"".join(blocks), _sha256(_merges(tokenizer)).hexdigest(), _sha256(special).hexdigest()
    )


def _vocabulary(tokenizer: Any) -> list[tuple[str, int]]:
    return sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))


def _merges(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else json.loads(backend.to_str()).get("model", {}).get("merges", [])


def _sha256(content: Any) -> hashlib._Hash:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode())


class TokenizerCodec:
    """The target's tokenizer as the verifier uses it (see :class:`actors.models.Codec`)."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)

    def encode(self, text: str, special_tokens: bool = True, context: int = 0) -> list[int]:
        self._check(text, context)
        return list(self.tokenizer.encode(text, add_special_tokens=special_tokens))

    def chat(
        self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING, context: int = 0
    ) -> list[int]:
        if not rendering.plain:
            return self.encode(self._template.render(turns, tools, rendering), special_tokens=False, context=context)
        plain = Plain(self.tokenizer, turns, tools, rendering.variables)
        shown = msgspec.structs.replace(rendering, variables=plain.variables)
        text = self._template.render(plain.turns, plain.tools, shown)
        self._check(text.replace(plain.mark, ""), context)
        return plain.encode(text)

    def _check(self, text: str, context: int) -> None:
        if context and len(text) >= context and (least := self._fewest(text)) >= context:
            raise too_long(least, context, "so many at least; ")

    @functools.cached_property
    def _fewest(self) -> Callable[[str], int]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return fewest_tokens(backend) if backend is not None else lambda text: 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        # for every token: transformers' wrapper around the Rust tokenizer takes longer than the decoding
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            text: str = backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text
        slow: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return slow

    def pieces(self, ids: Sequence[int]) -> list[str]:
        # Tokenizers strip the space from the first token of a text, so each is decoded after another.
        before = self.encode("a")[-1:]
        start = len(self.decode(before, False))
        distinct = {token: self.decode([*before, token], False)[start:] for token in set(ids)}
        return [distinct[token] for token in ids]

    def octets(self, ids: Sequence[int]) -> list[bytes]:
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        return [
            octets_of(token) if "\ufffd" in piece else b""
            for token, piece in zip(tokens, self.pieces(ids), strict=True)
        ]

    def config(self) -> dict[str, Any]:
        fast = getattr(self.tokenizer, "backend_tokenizer", None) is not None
        return {
            "tokenizer_class": "PreTrainedTokenizerFast" if fast else type(self.tokenizer).__name__,
            **{name: plainly(token) for name, token in self.tokenizer.special_tokens_map.items()},
            "chat_template": self._template.text or None,
            "added_tokens_decoder": {
                str(ident): {"content": str(token), "special": getattr(token, "special", True)}
                for ident, token in sorted(self.tokenizer.added_tokens_decoder.items())
            },
        }

    def vocabulary(self) -> Vocabulary:
        backend, octets = self._over_bytes
        added = backend.get_added_tokens_decoder()
        by_name = backend.get_vocab(with_added_tokens=False)
        tokens = [b""] * (1 + max((*by_name.values(), *added), default=-1))
        for name, ident in by_name.items():
            tokens[ident] = octets(name)
        for ident, token in added.items():
            tokens[ident] = token.content.encode()
        return Vocabulary(tokens, sorted(ident for ident, token in added.items() if token.special))

    def encode_inside(self, text: str) -> list[int]:
        backend, octets = self._over_bytes
        found = backend.encode(text, add_special_tokens=False)
        if b"".join(map(octets, found.tokens)) == text.encode():
            return list(found.ids)
        return encode_behind(lambda given: list(backend.encode(given, add_special_tokens=False).ids), text)

    @functools.cached_property
    def _over_bytes(self) -> tuple[Any, Callable[[str], bytes]]:
        """The tokenizer of Hugging Face's library, and what gives the bytes of a token's name."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            detail = "structured_outputs need a target with a fast tokenizer (a tokenizer.json), which this one has not"
            raise RequestError(FailureCode.UNSUPPORTED, detail)
        if (octets := octets_by(backend.decoder)) is None:
            detail = "structured_outputs need a tokenizer with a token for each byte, which this one has not"
            raise RequestError(FailureCode.UNSUPPORTED, detail)
        return backend, octets
