"""The tokenizer of a GGUF file, built from its vocabulary, merges and the name of its pre-tokenizer.

How each family cuts text before merging is a name in the file (``tokenizer.ggml.pre``); the patterns are those of the
families' own tokenizer.json. A name that is not known is refused: a wrong pattern gives other ids, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from actors.engines.weights.gguf import Strings
from protocols.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # values of tokenizer.ggml.token_type
SPACE = "\u2581"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@|"
_MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_YOUTU = (
    f"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_HAN}",
    _CASED.replace("@", _ENDINGS + "?") + r"\p{N}" + _REST,
)
_NO_HAN = "&&[^\\p{Han}]]"
_KIMI = (
    r"\p{Han}+|"
    + _CASED.replace("@", _ENDINGS + "?").replace(_UPPER, _UPPER[:-1] + _NO_HAN).replace(_LOWER, _LOWER[:-1] + _NO_HAN)
    + r"\p{N}{1,3}"
    + _REST.replace("/", "")
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_JAIS = "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"\s"
GPT2, DIGITS = "gpt-2", "digits"  # the pattern of byte-level BPE itself; the same with each digit alone
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
# Patterns, one after the other, by name
PATTERNS: dict[str, Sequence[str] | str] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "a.x-4.0", "granite-docling", "modern-bert"), GPT2),
    **dict.fromkeys(("jais", "trillion", "mellum", "gigachat"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), DIGITS),
    "mellum2": DIGITS,
    **dict.fromkeys((*LLAMA3, "dbrx", "smaug-bpe"), (_WORDS,)),
    "k2-horizon": (_WORDS.replace(r"\p{L}+", r"(?:\p{L}|\p{M}|\u200C|\u200D)+", 1),),
    "minicpm5": (r"\p{N}{1,3}", _WORDS.replace("{1,3}", "+")),
    "jais-2": (_WORDS.replace(r"|\s+(?!\S)|\s+", "|" + _JAIS),),
    **dict.fromkeys(("glm4", "glm5", "chatglm-bpe"), (_WORDS,)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "stablelm2", "hunyuan"), (_WORDS.replace("{1,3}", ""),)
    ),
    **dict.fromkeys(("grok-2", "solar-open", "f2llmv2"), (_WORDS.replace("{1,3}", ""),)),
    "ufakzeka": (_WORDS.replace("{1,3}", "").removeprefix(f"{_ENDINGS}|"),),
    "laguna": (r"[^\n]+|\n+", _WORDS.replace("{1,3}", "")),
    "seed-coder": (_WORDS.replace("{1,3}", "").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (_WORDS.replace("{1,3}", "").replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    ),
    "exaone-moe": (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "qwen35": (f"{_ENDINGS}|{_MARKED}",),
    "tekken": (_CASED.replace("@", "") + r"\p{N}" + _REST,),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"),
        (_CASED.replace("@", _ENDINGS + "?") + r"\p{N}{1,3}" + _REST,),
    ),
    "youtu": _YOUTU,
    **dict.fromkeys(
        ("tiny_aya", "cohere2moe"),
        (r"\d{1,3}(?=(?:\d{3})*\b)", _CASED.replace("@", _ENDINGS + "?") + r"\p{N}{1,3}" + _REST),
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK),
    "spark2_5": (*_DEEPSEEK[:2], _DEEPSEEK[2].replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"), r"\p{N}"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "kimi-k2": (_KIMI,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_BLOOM,)),
    "viking": (_BLOOM, r"\p{N}"),
}
NORMALISED = frozenset({"qwen2", "qwen35", "stablelm2", "megrez"})  # texts become composed characters (NFC)
WHOLE_FIRST = frozenset(
    {*LLAMA3, "tekken", "glm4", "glm5", "minicpm5", "youtu"}
)  # a word that is a token is not merged
ADDS_BOS = frozenset({*LLAMA3, "tekken"})
PIECES = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}  # for vocabularies of pieces in files that name none
# Tokens that end a text or a turn, by name, as in llama.cpp: files may name one of them only, and call it plain text
ENDINGS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|return|>", "<|call|>", "<|eom_id|>", "<turn|>"}
    | {"<|flush|>", "<|calls|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>"}
    | {"<end_of_utterance>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|ifm|im_end|>"}
)
# In models with these tokens <|end|> closes the thoughts, and the answer follows
ANSWER_FOLLOWS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})  # gpt-oss, Solar Open
NOT_STRIPPED = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # Phi 3's; all others take the spaces after them


def build_tokenizer(metadata: Mapping[str, Any], where: str) -> Any:
    """transformers' fast tokenizer of a file at ``where``. Raises ModelError with what to do where it cannot be."""
    from transformers import PreTrainedTokenizerFast

    of = _Vocabulary(metadata, where)
    build = BUILDERS.get(str(of("model")))
    if build is None:
        raise ModelError(
            f"{where} has a tokenizer of kind {of('model') or 'unknown'}, which duoactor does not build; "
            "give --tokenizer the original model, or put its tokenizer.json beside the file"
        )
    if not of.tokens:
        raise ModelError(
            f"{where} has no tokenizer.ggml.tokens; download it again, or put the original tokenizer.json beside it"
        )
    begin, end = of.token("bos_token_id"), of.token("eos_token_id")
    try:
        tokenizer = build(of)
        _add_special(tokenizer, of)
        _put_around(tokenizer, of, begin if _adds_bos(of) else None, end if of("add_eos_token") else None)
    except ModelError:
        raise
    except Exception as error:  # the library's: a merge that makes no token, tokens that are there twice
        raise ModelError(
            f"{where} has a vocabulary that makes no tokenizer: {error}; give --tokenizer the original model, or put "
            "its tokenizer.json beside the file"
        ) from None
    named = {"bos_token": begin, "eos_token": end, "unk_token": of.token("unknown_token_id")}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=of.token("padding_token_id"),
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in named.items() if token is not None},
    )
    made.chat_template = _template(metadata)
    return made


def _template(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template, or several by their names: Command R has one of its own for tools."""
    begin = "tokenizer.chat_template"
    one, names = metadata.get(begin), metadata.get(f"{begin}s", ())
    several = {name: metadata[f"{begin}.{name}"] for name in names if f"{begin}.{name}" in metadata}
    return {"default": one, **several} if one and several else one


def end_ids(metadata: Mapping[str, Any], where: str) -> set[int]:
    """The tokens that end a text or a turn: chat models end turns by another token than texts. Raises ModelError for a
    vocabulary that is none."""
    of = _Vocabulary(metadata, where)
    named = {token: i for i, token in enumerate(of.tokens) if token in ENDINGS}
    ids = {of(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")} | set(named.values())
    if any(marks <= named.keys() for marks in ANSWER_FOLLOWS):
        ids.discard(named.get("<|end|>"))
    return {int(i) for i in ids if i is not None and i >= 0}


class _Vocabulary:
    """``tokenizer.ggml.*`` of a file."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        """Raises ModelError for entries that do not fit together."""
        self._metadata, self.where = metadata, where
        self.architecture = metadata.get("general.architecture")
        self.tokens = self._strings("tokens")
        for key, kinds in {"token_type": "iu", "scores": "f"}.items():
            found = self(key)
            if found is not None and (np.asarray(found).dtype.kind not in kinds or len(found) != len(self.tokens)):
                raise self._wrong(key, f"has no number for each of {len(self.tokens)} tokens")
        for key in ("bos", "eos", "eot", "eom", "unknown", "padding"):
            found = self(f"{key}_token_id")
            if found is not None and type(found) is not int:
                raise self._wrong(f"{key}_token_id", "is no number of a token")
        for merge in (merges := self._strings("merges")):
            if " " not in merge[:-1]:
                raise self._wrong("merges", f"has {merge!r}, which is no pair of tokens")
        self.merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]

    def check_merges(self) -> None:
        """Raise ModelError where tokens are made of others and nothing says in which order."""
        known, kinds = set(self.tokens), self("token_type")
        for at, token in enumerate(() if self.merges else self.tokens):
            if len(token) > 1 and (kinds is None or kinds[at] == NORMAL) and known.issuperset(token):
                raise ModelError(
                    f"{self.where} has no tokenizer.ggml.merges, so no text would become its token {token!r}; download "
                    "it again, or put the original tokenizer.json beside it"
                )

    def _strings(self, key: str) -> list[str]:
        found = self(key)
        if found is not None and not isinstance(found, Strings | list | tuple):
            raise self._wrong(key, "is no list")
        strings = [*(found or ())]
        if not all(isinstance(one, str) for one in strings):
            raise self._wrong(key, "is no list of texts")
        return strings

    def _wrong(self, key: str, what: str) -> ModelError:
        return ModelError(f"tokenizer.ggml.{key} in {self.where} {what}; download it again")

    def __call__(self, key: str) -> Any:
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        return PIECES.get(key) if found is None and self._metadata.get("tokenizer.ggml.model") == "llama" else found

    def token(self, key: str) -> str | None:
        place = self(key)
        return self.tokens[place] if place is not None and 0 <= place < len(self.tokens) else None

    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def spaced(self) -> list[str]:
        """The pieces; those of spaces alone may be written with spaces in the file."""
        return [SPACE * len(token) if token and not token.strip(" ") else token for token in self.tokens]


def _adds_bos(of: _Vocabulary) -> bool:
    asked = of("add_bos_token")
    if of("model") == "gemma4":  # its chat template writes the token
        return False
    return bool(asked) if asked is not None else of("model") == "llama" or of("pre") in ADDS_BOS


def _byte_level(of: _Vocabulary) -> Tokenizer:
    name = str(of("pre") or "default")
    patterns = PATTERNS.get(name)
    if patterns is None:
        raise ModelError(
            f"{of.where} cuts text by the pattern {name!r}, which duoactor does not know; "
            "give --tokenizer the original model, or put its tokenizer.json beside the file"
        )
    of.check_merges()
    tokenizer = Tokenizer(models.BPE(of.ids(), of.merges, ignore_merges=name in WHOLE_FIRST))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=isinstance(patterns, str))
    if patterns == DIGITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_only])
    elif isinstance(patterns, str):
        tokenizer.pre_tokenizer = bytes_only
    else:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_only])
    if name in NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(of: _Vocabulary) -> Tokenizer:
    """A vocabulary of pieces with scores; merges follow from them."""
    if not of.merges and of("scores") is None:
        raise ModelError(f"{of.where} has neither merges nor scores of its tokens; download it again")
    merges = of.merges or derived_merges(of.spaced(), np.asarray(of("scores")), of("token_type"))
    prefix = of("add_space_prefix")
    return _spaced(of, merges, prefix is None or bool(prefix))


def _gemma4(of: _Vocabulary) -> Tokenizer:
    of.check_merges()
    return _spaced(of, of.merges)


def derived_merges(tokens: list[str], scores: np.ndarray, kinds: np.ndarray | None) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best first: the pair with the best-scored piece is joined."""
    usable = {token: i for i, token in enumerate(tokens) if kinds is None or kinds[i] not in (CONTROL, BYTE)}
    ranks = np.empty(len(tokens), np.int64)
    behind = np.ones(len(tokens)) if kinds is None else np.asarray(kinds) != USER_DEFINED  # those come first
    ranks[np.lexsort((-scores, behind))] = np.arange(len(tokens))
    found: list[tuple[int, int, str, str]] = []
    for token, i in usable.items():
        rank = int(ranks[i])
        for cut in range(len(token) - 1, 0, -1):
            left = token[:cut]
            if left in usable and token[cut:] in usable:
                found.append((rank, -cut, left, token[cut:]))
    found.sort()
    return [(left, right) for _, _, left, right in found]


def _spaced(of: _Vocabulary, merges: list[tuple[str, str]], prefix: bool = False) -> Tokenizer:
    """Pieces over characters with spaces as ``SPACE`` and bytes as ``<0x0A>``."""
    ids = {token: i for i, token in enumerate(of.spaced())}
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token=of.token("unknown_token_id"), fuse_unk=True, byte_fallback=True)
    )
    replaced = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replaced]) if prefix else replaced
    stripped = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return tokenizer


def _add_special(tokenizer: Tokenizer, of: _Vocabulary) -> None:
    """Control tokens are special; user-defined ones are found whole in a text as well."""
    kinds, known = of("token_type"), tokenizer.get_vocab(with_added_tokens=False)
    strips = of("model") == "llama" and of.architecture == "phi3"
    plain = {"</s>"} if "<|tool_response>" in known else set()  # Gemma 4's is a tag like others
    found: dict[bool, list[AddedToken]] = {True: [], False: []}
    for kind, token in zip([0] * len(of.tokens) if kinds is None else kinds, of.tokens, strict=True):
        special = (kind in (UNKNOWN, CONTROL) or token in ENDINGS) and token not in plain
        if (special or kind == USER_DEFINED) and token in known:
            behind = strips and token not in NOT_STRIPPED
            found[special].append(AddedToken(token, normalized=False, special=special, rstrip=behind))
    tokenizer.add_special_tokens(found[True])
    tokenizer.add_tokens(found[False])


def _put_around(tokenizer: Tokenizer, of: _Vocabulary, begin: str | None, end: str | None) -> None:
    """The first and the last token of a text; None: there is none."""
    numbers = {begin: of("bos_token_id"), end: of("eos_token_id")}
    if tokens := [(token, number) for token, number in numbers.items() if token is not None]:
        whole = [token for token in (begin, "$A", end) if token is not None]
        tokenizer.post_processor = processors.TemplateProcessing(single=whole, special_tokens=tokens)


# By ``tokenizer.ggml.model``
BUILDERS: dict[str, Callable[[_Vocabulary], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _gemma4,
}
