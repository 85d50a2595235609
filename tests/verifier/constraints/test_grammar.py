"""Masks, pruned drafts and forced tokens of one request's grammar."""

import itertools
import json
import random
import sys
import types

import numpy as np
import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from actors.engines.text.tokenizer import TokenizerCodec
from actors.methods import STRATEGIES
from actors.models import DEFAULT_NODES, ModelInfo
from actors.tree.tree import FORCED, TokenTree
from actors.tree.window import best_nodes, in_tree_order
from actors.verifier.constraints.dictated import Dictated
from actors.verifier.constraints.grammar import MAX_RULES
from actors.verifier.sources.grammar import FORCED_BYTES, Grammars
from protocols.errors import RequestError
from protocols.messages import Dictation, StructuredOutputs
from tests.world.structured import WANTED, codec

EOS = 1
INFO = ModelInfo("pair", 8192, 512, frozenset({EOS}), "digest")


@pytest.fixture(scope="module")
def grammars():
    return Grammars(codec(), INFO)


def encode(text: str) -> list[int]:
    return codec().tokenizer.encode(text, add_special_tokens=False)


def allowed(row) -> list[int]:
    return np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist()


def walk(grammars, wanted, chance, most=30) -> list[int]:
    """A random output that follows the grammar, without its end."""
    grammar = grammars.grammar(wanted)
    output: list[int] = []
    while len(output) < most and (tokens := [t for t in allowed(grammar.masks()[0]) if t != EOS]):
        output.append(chance.choice(tokens))
        grammar.commit(output[-1:])
    return output


@pytest.mark.parametrize("name", WANTED)
def test_a_windows_masks_are_those_of_one_row_at_a_time(grammars, name):
    """Whatever the window's shape and order, and also where some of its nodes are refused."""
    wanted, chance = WANTED[name], random.Random(name)
    for _ in range(6):
        output = walk(grammars, wanted, chance)
        begun = chance.randrange(len(output))
        grammar = grammars.grammar(wanted, output[:begun])
        tokens, parents, paths = [], [], [[]]
        for _ in range(12):
            parent = chance.randrange(len(paths))
            row = grammars.grammar(wanted, output[:begun] + paths[parent]).masks()[0]
            right = [t for t in allowed(row) if t != EOS]
            if not right or chance.random() < 0.2:
                continue
            tokens.append(chance.choice(right))
            parents.append(parent - 1)
            paths.append([*paths[parent], tokens[-1]])
        tokens += [4242, EOS]
        parents += [-1, -1]
        masks = grammar.masks(tokens, parents)
        assert grammar.masks(tokens, parents).tolist() == masks.tolist()
        for row, path in zip(masks, paths, strict=False):
            assert row.tolist() == grammars.grammar(wanted, output[:begun] + path).masks()[0].tolist()


@pytest.mark.parametrize("name", WANTED)
def test_what_is_planted_is_all_that_the_mask_allows(grammars, name):
    wanted, chance = WANTED[name], random.Random(name)
    seen = 0
    for _ in range(4):
        output = walk(grammars, wanted, chance)
        grammar = grammars.grammar(wanted)
        tree = TokenTree(7, 5)
        for token in [*output, EOS]:
            grammar.fit(tree)
            forced = [child for child in tree.root.children if child.rank == FORCED]
            tokens = allowed(grammar.masks()[0])
            assert [node.token for node in forced] == (tokens if len(tokens) == 1 else [])
            assert all(tree.total(node) == 0 for node in forced), "a certain branch has chance one"
            seen += len(forced)
            grammar.commit([token])
            tree.advance([token])
            if token == EOS:
                break
    assert seen > 8


def test_drafts_that_the_grammar_refuses_are_pruned_and_the_others_stay(grammars):
    grammar = grammars.grammar(StructuredOutputs(regex="(red|green) [0-9]{3}"))
    tree = TokenTree(7, 5)
    red, blue, digits = encode("red"), encode("blue"), encode("123")
    for path in ([*red, *encode(" "), digits[0]], blue, [*red, *blue], [*red, *encode(" "), *blue]):
        node = tree.root
        for token in path:
            node = tree.add(node, token, -0.5)
    grammar.fit(tree)
    kept = {node.token for node in tree.nodes()}
    assert set(red) | {digits[0]} <= kept
    assert not kept & (set(blue) - set(red) - set(digits))
    assert tree.size == sum(1 for _ in tree.nodes())
    order, parents = in_tree_order([node for node, _ in best_nodes(tree, 31)], tree.root)
    masks = grammar.masks([node.token for node in order], parents)
    assert all(node.token in allowed(masks[parent + 1]) for node, parent in zip(order, parents, strict=True))


def test_a_draft_that_comes_again_after_it_was_pruned_is_pruned_again(grammars):
    grammar = grammars.grammar(StructuredOutputs(regex="[0-9]{3}"))
    tree = TokenTree(7, 5)
    wrong = encode("blue")[0]
    for _ in range(2):
        tree.add(tree.root, wrong, -0.1)
        grammar.fit(tree)
        assert tree.root.child(wrong) is None


def test_the_end_is_forced_where_the_output_is_complete_and_allowed_where_it_may_be(grammars):
    whole = grammars.grammar(StructuredOutputs(regex="12"), encode("12"))
    tree = TokenTree(7, 5)
    whole.fit(tree)
    assert [node.token for node in tree.nodes()] == [EOS] == allowed(whole.masks()[0])
    either = grammars.grammar(StructuredOutputs(regex="1+"), encode("1"))
    tree = TokenTree(7, 5)
    tree.add(tree.root, EOS, -0.3)
    either.fit(tree)
    assert tree.root.child(EOS).rank != FORCED
    assert EOS in allowed(either.masks()[0]) and len(allowed(either.masks()[0])) > 1


def test_a_draft_that_breaks_the_matcher_costs_drafts_and_not_the_request(grammars, monkeypatch):
    """llguidance has limits, and once it reaches one a matcher is good for nothing. Drafts could lead it there."""
    text = encode("12345")
    grammar = grammars.grammar(StructuredOutputs(regex="[0-9]{1,9}"), text[:1])
    plain = grammar.masks().tolist()
    real, broken = grammar._matcher, []
    fragile = types.SimpleNamespace(
        is_error=lambda: bool(broken),
        get_error=lambda: "Parser Error: too many items\n<non-verbose/>",
        try_consume_tokens=lambda tokens: broken.append(1) or real.try_consume_tokens(tokens),
        **{name: getattr(real, name) for name in ("rollback", "unsafe_compute_mask_ptr", "compute_ff_tokens")},
        is_stopped=real.is_stopped,
        is_accepting=real.is_accepting,
    )
    grammar._matcher = fragile
    with pytest.raises(RequestError, match="cannot be followed behind 1 tokens: Parser Error: too many items"):
        grammar.masks(text[1:2], [-1])
    assert grammar.masks().tolist() == plain, "a new matcher stands where the old one stood"
    assert grammar.most_nodes() == 0
    tree = TokenTree(7, 5)
    grammar.fit(tree)
    assert tree.size == 0


REFUSED = {
    "half a document": (StructuredOutputs(json_schema='{"type":'), "cannot be used: Expecting value"),
    "no schema": (StructuredOutputs(json_schema="[1]"), "cannot be used: schema must be an object"),
    "a type that there is not": (StructuredOutputs(json_schema='{"type": "nonsense"}'), "Invalid type: nonsense"),
    "a keyword that cannot be had": (StructuredOutputs(json_schema='{"not": {}}'), "Unimplemented keys"),
    "a schema elsewhere": (StructuredOutputs(json_schema='{"$ref": "http://x/y"}'), "cannot be used"),
    "what nothing satisfies": (
        StructuredOutputs(json_schema='{"allOf": [{"type": "string"}, {"type": "integer"}]}'),
        "Unsatisfiable schema",
    ),
    "a schema within itself": (
        StructuredOutputs(json_schema='{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}'),
        "cannot be followed behind 0 tokens: no token of the model may come next",
    ),
    "a schema too deep": (
        StructuredOutputs(json_schema='{"items":' * 5000 + "{}" + "}" * 5000),
        "cannot be used: it is nested",
    ),
    "a schema a little too deep": (StructuredOutputs(json_schema='{"items":' * 900 + "{}" + "}" * 900), "is nested"),
    "an open group": (StructuredOutputs(regex="(a|b"), "cannot be used: unclosed group"),
    "a look-ahead": (StructuredOutputs(regex="(?=a)b"), "look-around"),
    "a regex of nothing": (StructuredOutputs(regex=r"[^\s\S]"), "0 tokens: no token of the model may come next"),
    "a rule that there is not": (StructuredOutputs(grammar="start: foo"), 'unknown name: "foo"'),
    "no grammar": (StructuredOutputs(grammar="Hello!"), "cannot be used"),
    "a grammar of parentheses": (StructuredOutputs(grammar="start: " + "(" * 9000), "too deeply nested"),
    "GBNF of parentheses": (StructuredOutputs(grammar="root ::= " + "(" * 9000), "cannot be used"),
    "too many rules": (
        StructuredOutputs(grammar="start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(MAX_RULES))),
        f"has more than {MAX_RULES} rules",
    ),
    "a lexeme that explodes": (
        StructuredOutputs(grammar="start: A\nA: /.*a.{12}b.*/ & /.*c.{12}d.*/ & /.*e.{14}f.*/"),
        "lexer error: too many expressions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_in_one_sentence(grammars, name):
    wanted, sentence = REFUSED[name]
    with pytest.raises(RequestError, match=sentence) as refused:
        grammars.grammar(wanted)
    assert refused.value.code == "bad_request"
    text = str(refused.value)
    assert text.startswith("structured_outputs") and "\n" not in text and len(text) < 400


@pytest.mark.parametrize(
    "wanted",
    [
        StructuredOutputs(grammar="start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(900)) + 'r900: "a"'),
        StructuredOutputs(
            json_schema='{"$ref": "#/$defs/d0", "$defs": {'
            + "".join(f'"d{i}": {{"$ref": "#/$defs/d{i + 1}"}}, ' for i in range(7000))
            + '"d7000": {"type": "null"}}}'
        ),
    ],
    ids=["rules", "references"],
)
def test_a_long_chain_does_not_end_the_process(grammars, wanted):
    assert len(allowed(grammars.grammar(wanted).masks()[0])) == 1


def test_a_grammar_that_explodes_later_on_says_so():
    grammar = Grammars(codec(), INFO).grammar(StructuredOutputs(regex="(a?){3000}a{3000}"))
    with pytest.raises(RequestError, match="cannot be followed behind 1 tokens: lexer error: too many expressions"):
        grammar.commit(encode("a"))


def test_a_resumed_output_must_have_followed_the_grammar(grammars):
    wanted = StructuredOutputs(regex="[0-9]{3}")
    with pytest.raises(RequestError, match="do not allow what the output has"):
        grammars.grammar(wanted, encode("12 red"))


def test_without_llguidance_or_an_end_token_the_request_says_what_is_missing(monkeypatch):
    wanted = StructuredOutputs(regex="a")
    with pytest.raises(RequestError, match="end-of-sequence token") as refused:
        Grammars(codec(), ModelInfo("pair", 8192, 512, frozenset(), "digest")).grammar(wanted)
    assert refused.value.code == "unsupported"
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install .*\[structured\]'") as refused:
        Grammars(codec(), INFO).grammar(wanted)
    assert refused.value.code == "unsupported"


ALONE = {"single_word": False, "lstrip": False, "rstrip": False}
PREFIXED = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<end>", "special": True, "normalized": False, **ALONE}],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}


def prefixed() -> TokenizerCodec:
    """A tokenizer as Llama 2's: bytes by name, and a space in front of every text."""
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<end>", *octets, "\u2581", *map(chr, range(33, 127)), "\u2581a", "ab", '{"']
    vocabulary = {name: at for at, name in enumerate(names)}
    merges = [["\u2581", "a"], ["a", "b"], ["{", '"']]
    model = {"type": "BPE", "vocab": vocabulary, "byte_fallback": True, "merges": merges}
    backend = Tokenizer.from_str(json.dumps(PREFIXED | {"model": model}))
    return TokenizerCodec(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("kind", ["letters", "prefixed"])
def test_the_index_is_that_of_the_tokenizers_own_file(kind):
    """llguidance reads a tokenizer.json as well, which takes seconds for a large vocabulary."""
    used = codec() if kind == "letters" else prefixed()
    chance = random.Random(kind)
    file = LLTokenizer(used.tokenizer.backend_tokenizer.to_str())
    index = Grammars(used, ModelInfo(kind, file.vocab_size, 512, frozenset({0}), "digest"))._index()
    ids = range(file.vocab_size)
    assert [index.decode_bytes([i]) for i in ids] == [file.decode_bytes([i]) for i in ids]
    assert [index.is_special_token(i) for i in ids] == [file.is_special_token(i) for i in ids]
    for _ in range(300):
        text = "".join(chance.choice('ab {}"\n9\u00e9\u65e5') for _ in range(chance.randrange(1, 12)))
        assert index.tokenize_str(text) == file.tokenize_str(text)


def composing() -> TokenizerCodec:
    """The bundled pair's tokenizer with the normaliser of Qwen's."""
    described = json.loads(codec().tokenizer.backend_tokenizer.to_str())
    backend = Tokenizer.from_str(json.dumps(described | {"normalizer": {"type": "NFC"}}))
    return TokenizerCodec(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("text", ["</s>", "a <|user|> b", "<s>", "e\u0301", "\u212b and <unk>"])
@pytest.mark.parametrize("made", [codec, composing, prefixed])
def test_what_a_form_names_is_spelt_by_ordinary_tokens_whatever_the_tokenizer_makes_of_it(made, text):
    """A tokenizer takes a special token's name for that token, and Qwen's composes characters."""
    used = made()
    grammars = Grammars(used, ModelInfo("any", len(used.tokenizer), 512, frozenset({EOS}), "digest"))
    special = grammars._index().is_special_token
    schemas = [{"const": text}, {"type": "object", "properties": {text: {"const": 1}}, "required": [text]}]
    schemas[1]["additionalProperties"] = False
    wanted = {
        text: StructuredOutputs(grammar=f"start: {json.dumps(text)}"),
        json.dumps(text, ensure_ascii=False): StructuredOutputs(json_schema=json.dumps(schemas[0])),
        json.dumps({text: 1}, ensure_ascii=False): StructuredOutputs(json_schema=json.dumps(schemas[1])),
    }
    for expected, structure in wanted.items():
        grammar, output = grammars.grammar(structure), []
        while (tokens := allowed(grammar.masks()[0])) != [EOS]:
            assert not any(map(special, tokens))
            output.append(tokens[0])
            grammar.commit(tokens[:1])
        assert grammars._index().decode_bytes(output) == expected.encode()


def test_a_window_of_slow_masks_keeps_no_other_stream_waiting_for_long():
    slow = itertools.count(step=0.02)
    grammar = Grammars(codec(), INFO, lambda: next(slow)).grammar(StructuredOutputs(regex="[0-9]{1,9}"))
    for _ in range(50):
        grammar.masks()
    assert grammar.most_nodes() == 2, "with 20 ms a mask"


def test_a_methods_whole_window_has_room_under_a_grammar(grammars):
    """Lookahead learns from whole windows only."""
    grammar = grammars.grammar(StructuredOutputs(regex="[0-9]{1,9}"))
    dictated = Dictated(Dictation(0, (300, 17)), codec(), INFO.vocab_size, None, ())
    largest = max(strategy.nodes for strategy in STRATEGIES.values())
    assert grammar.most_nodes() >= largest and dictated.most_nodes() >= largest


class Counting:
    """The bundled codec; counts the bytes that it is asked to tokenize."""

    def __init__(self) -> None:
        self.octets, self.calls = 0, 0

    def __getattr__(self, name):
        return getattr(codec(), name)

    def encode_inside(self, text):
        self.octets += len(text.encode())
        self.calls += 1
        return codec().encode_inside(text)


@pytest.mark.parametrize(
    ("wanted", "length"),
    [
        (StructuredOutputs(regex="a{100000}"), 100_000),
        (StructuredOutputs(json_schema=json.dumps({"const": "abc " * 25_000})), 100_002),
        (StructuredOutputs(regex="é{20000}"), 20_000),
    ],
    ids=["repeat", "constant", "letters of two bytes"],
)
def test_a_long_forced_text_is_tokenized_no_further_than_a_window_needs(wanted, length):
    counting = Counting()
    grammar = Grammars(counting, INFO).grammar(wanted)
    tree, text = TokenTree(7, 5), ""
    for _ in range(5):
        counting.octets = counting.calls = 0
        grammar.fit(tree)
        nodes = [*tree.nodes()]
        assert 25 <= len(nodes) <= DEFAULT_NODES and all(node.rank == FORCED for node in nodes)
        [*_, mask] = grammar.masks([node.token for node in nodes[:3]], [-1, 0, 1])
        assert allowed(mask) == [nodes[3].token]
        assert counting.octets <= FORCED_BYTES * counting.calls < length / 10
        tokens = [node.token for node in nodes[:4]]
        grammar.commit(tokens)
        tree.advance(tokens)
        text += codec().decode(tokens)
    assert "a" * 4 in text or "abc abc" in text or "éé" in text


def test_checks_of_drafts_end_with_their_time_and_go_on_in_the_next_round():
    step = 0.02  # seconds between two looks at the clock
    now = itertools.accumulate(iter(lambda: step, None))
    grammar = Grammars(codec(), INFO, lambda: next(now)).grammar(StructuredOutputs(regex="[0-9]{30}"))
    tree = TokenTree(7, 5)
    wrong = encode("blue")[0]
    node = tree.root
    for token in encode("1") * 8:
        tree.add(node, wrong, -0.1)
        node = tree.add(node, token, -0.5)
    grammar.fit(tree)
    left = [one for one in tree.nodes() if one.token == wrong]
    assert 0 < len(left) < 8
    step = 0.0
    grammar.fit(tree)
    assert not any(one.token == wrong for one in tree.nodes())


def test_a_matcher_that_a_draft_broke_is_replaced_without_compiling_again(grammars, monkeypatch):
    grammar = grammars.grammar(StructuredOutputs(regex="[0-9]{1,9}"), encode("12"))
    plain = grammar.masks().tolist()
    monkeypatch.setattr(grammar, "_compiled", lambda: pytest.fail("compiled in the event loop"))
    grammar._restart()
    assert grammar.masks().tolist() == plain
