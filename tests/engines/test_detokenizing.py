"""The verifier's detokenizer with tokenizers as models have them: byte-level, and Llama's with its bytes and spaces."""

import json
import random

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from actors.verifier.output import Output
from actors.verifier.text import Detokenizer
from protocols.messages import Sampling

TEXTS = [
    "Hello world, naïve café Grüße",
    "don't stop.\n\n  spaces\tand a tab ",
    "emoji 😀 👩‍👩‍👧 世界, 日本語!",
    "🦜🦜 x 🦜",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["Hello world spaces don't stop"], trainer)
    return tokenizer


def llama() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    tokenizer.train_from_iterator(["Hello world spaces don't stop"], trainer)
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = [token for token in plain["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(plain))


def decoder(tokenizer: Tokenizer):
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


TOKENIZERS = {"byte level": byte_level(), "llama": llama()}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_behind_every_cut_and_no_character_is_halved(tokenizer, text):
    ids = tokenizer.encode(text).ids
    decode = decoder(tokenizer)
    for cut in range(len(ids)):
        detokenizer = Detokenizer(decode, ids[:cut])
        pieces = [detokenizer.push(token) for token in ids[cut:]]
        prompt = decode(ids[:cut])
        assert detokenizer.flush() == ""
        assert not any("�" in piece for piece in pieces)
        assert decode(ids).endswith("".join(pieces))
        if decode(ids).startswith(prompt):
            assert prompt + "".join(pieces) == decode(ids)
        else:  # the prompt ends inside a character, which is text of the output then
            before = max(n for n in range(cut) if decode(ids).startswith(decode(ids[:n])))
            assert decode(ids[:before]) + "".join(pieces) == decode(ids)


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_that_is_resumed_inside_a_character_goes_on_with_the_same_text(tokenizer, text):
    prompt, ids = tokenizer.encode("Hello").ids, tokenizer.encode(text).ids
    decode = decoder(tokenizer)

    def pieces(generated):
        output = Output(prompt, Sampling(max_tokens=len(ids)), frozenset(), decode, generated)
        rest = ids[len(generated) :]
        assert output.take(rest) == len(rest)
        return output.spell(len(rest))[0]

    whole = pieces([])
    for cut in range(1, len(ids)):
        assert pieces(ids[:cut]) == whole[cut:]


@every_tokenizer
def test_special_tokens_are_no_text(tokenizer):
    decode = decoder(tokenizer)
    special = min(tokenizer.get_added_tokens_decoder())
    hello, world = tokenizer.encode("Hello").ids, tokenizer.encode(" world").ids
    detokenizer = Detokenizer(decode, hello)
    with_it = [detokenizer.push(token) for token in [special, *world]]
    detokenizer = Detokenizer(decode, hello)
    assert with_it == ["", *(detokenizer.push(token) for token in world)]


@every_tokenizer
def test_endless_bytes_that_are_no_text_are_given_out_and_cost_no_more_each(tokenizer):
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer.decode(list(ids), skip_special_tokens=True)

    (broken,) = {tokenizer.token_to_id(name) for name in ("<0xFF>", "ÿ")} - {None}
    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.push(broken) for _ in range(500)) + detokenizer.flush()
    assert text == "�" * 500
    assert longest < 30


@every_tokenizer
def test_a_character_behind_bytes_that_are_no_text_is_whole(tokenizer):
    (broken,) = {tokenizer.token_to_id(name) for name in ("<0xFF>", "ÿ")} - {None}
    parrot = tokenizer.encode("🦜").ids[-4:]
    for count in range(20):
        detokenizer = Detokenizer(decoder(tokenizer))
        text = "".join(detokenizer.push(token) for token in [*[broken] * count, *parrot]) + detokenizer.flush()
        if tokenizer is TOKENIZERS["byte level"]:  # Llama's decoder calls every byte of such a run broken
            assert text == "�" * count + "🦜"
        assert text.startswith("�" * count)


def test_no_sequence_of_tokens_breaks_it():
    chance = random.Random(5)
    for tokenizer in TOKENIZERS.values():
        for _ in range(300):
            ids = [chance.randrange(tokenizer.get_vocab_size()) for _ in range(30)]
            detokenizer = Detokenizer(decoder(tokenizer), ids[:10])
            for token in ids[10:]:
                detokenizer.push(token)
            detokenizer.flush()


def test_why_the_librarys_own_stream_is_not_used():
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("ab 🦜").ids
    stream = DecodeStream(ids=ids[:-1], skip_special_tokens=True)
    assert stream.step(tokenizer, ids[-1]) == "ab 🦜"  # the prompt's own text again
    tokenizer = TOKENIZERS["llama"]
    chance = random.Random(0)
    with pytest.raises(Exception, match="Invalid prefix"):
        for _ in range(1000):
            stream = DecodeStream(skip_special_tokens=True)
            for _ in range(20):
                stream.step(tokenizer, chance.randrange(tokenizer.get_vocab_size()))
