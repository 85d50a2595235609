"""Long texts: those that cannot fit are refused unread, and those that can are tokenized beside other threads."""

from __future__ import annotations

import random
import threading
import time

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from actors.engines.text.kept_tokenizer import FastTokenizer, KeptTokenizer
from actors.engines.text.longest import fewest_tokens
from actors.engines.text.plain import LETTERS
from actors.engines.text.tokenizer import TokenizerCodec
from actors.engines.weights.loading import load_tokenizer
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Rendering
from tests.world.structured import PAIR, codec

CONTEXT = 2048
WORDS = ["a", " ", "\n", "don't", "42", "é", "e\u0301", "\u1fef", "\u0390", "日本", "\u1100\u1161\u11a8", "▁", "\x04"]
WORDS += ["\x00", "<|end|>", "\U0001f600", "\U0001d15e"]


def letters(without: bytes = b"") -> dict[str, int]:
    names = [letter for letter, byte in LETTERS.items() if byte not in without]
    return {name: number for number, name in enumerate([*names, "ĠĠ", "ĠĠĠĠ", "ao", "aoao"])}


def over_letters(without: bytes = b"", normalizer=None) -> Tokenizer:
    made = Tokenizer(models.BPE(letters(without), [("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "o"), ("ao", "ao")]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens(["<|end|>"])
    return made


def over_bytes() -> Tokenizer:
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), "<unk>", "▁", "▁▁", "▁▁▁▁", "a", "o", "ao", "aoao"]
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("a", "o"), ("ao", "ao")]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.add_special_tokens(["<|end|>"])
    return made


KNOWN = {
    "letters": over_letters,
    "letters without control characters": lambda: over_letters(bytes(range(10))),
    "letters behind NFC": lambda: over_letters(normalizer=normalizers.NFC()),
    "letters without some, behind NFC": lambda: over_letters(bytes(range(10)), normalizers.NFC()),
    "bytes": over_bytes,
    "the bundled pair's": lambda: load_tokenizer(str(PAIR / "target")).backend_tokenizer,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_text_has_at_least_as_many_tokens_as_its_length_tells(name):
    backend, dice = KNOWN[name](), random.Random(name)
    fewest, told = fewest_tokens(backend), 0
    for _ in range(300):
        some = dice.sample(WORDS, dice.randint(1, 4))
        text = "".join(dice.choice(some) for _ in range(dice.randint(1, 400)))
        assert fewest(text) <= len(backend.encode(text, add_special_tokens=False).ids), text
        told += fewest(text) > 0
    assert told > 100


def dropping_spaces() -> Tokenizer:
    made = over_letters()
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(False)])
    return made


def eating_spaces() -> Tokenizer:
    made = over_letters()
    made.add_special_tokens([AddedToken("<|user|>", rstrip=True, special=True)])
    return made


def with_unknown() -> Tokenizer:
    return Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (dropping_spaces, "a" + " " * 10_000),
        (eating_spaces, "<|user|>" + " " * 10_000),
        (with_unknown, "b" * 10_000),
        (lambda: over_letters(normalizer=normalizers.Replace("aa", "")), "a" * 10_000),
        (lambda: over_letters(normalizer=normalizers.StripAccents()), "\u0301" * 10_000),
    ],
)
def test_where_a_token_may_stand_for_any_length_nothing_is_said(made, text):
    assert fewest_tokens(made())(text) == 0


@pytest.mark.parametrize("plain", [False, True])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(plain, monkeypatch):
    text = "a" * 3_000_000
    monkeypatch.setattr(type(codec().tokenizer), "encode", None)
    with pytest.raises(RequestError, match=r"prompt is too long: \d+ tokens > 2047 maximum \(so many at least") as one:
        codec().encode(text, context=CONTEXT)
    with pytest.raises(RequestError, match="this model's maximum context length is 2048 tokens"):
        codec().chat([ChatTurn("user", text)], rendering=Rendering(plain=plain), context=CONTEXT)
    assert one.value.code == "context_length"


def test_other_threads_go_on_while_a_long_text_is_tokenized():
    ours = TokenizerCodec(FastTokenizer(KeptTokenizer.of(load_tokenizer(str(PAIR / "target")))))
    for text in ("a" * 500_000, "Hello there, you! " * 50_000):
        begun, ended = threading.Event(), threading.Event()

        def tokenize(text=text, begun=begun, ended=ended):
            begun.set()
            ours.encode(text)
            ended.set()

        thread, turns = threading.Thread(target=tokenize), 0
        thread.start()
        begun.wait()
        while not ended.is_set():
            turns += 1
            time.sleep(0)
        thread.join()
        assert turns > 100  # or two, if the interpreter's lock is held meanwhile
