import json
import random

import numpy as np
import pytest

from actors.datastore import ORDERED, Datastore, Retrieval, build, suffix_array
from actors.proposals import propose
from protocols.errors import ConfigError, ModelError


def stored(tmp_path, documents, vocab_size=100, digest="d"):
    build(tmp_path, documents, vocab_size, digest)
    return Datastore.open(tmp_path, digest)


@pytest.mark.parametrize("symbols", [1, 2, 50, 70_000, 2**31])
def test_suffixes_are_in_the_order_of_their_first_tokens(symbols):
    rng = np.random.default_rng(symbols)
    tokens = rng.integers(0, symbols, 300).astype(np.uint32)
    order = suffix_array(tokens, symbols)
    assert sorted(order.tolist()) == list(range(300))
    keys = [tokens[at : at + ORDERED].tolist() for at in order.tolist()]
    assert keys == sorted(keys)


def test_a_datastore_that_is_built_anew_leaves_the_old_one_to_those_who_have_it_open(tmp_path):
    old = stored(tmp_path, [[1, 2, 3] * 2000])
    new = stored(tmp_path, [[4, 5]])
    assert old.tokens[:4].tolist() == [1, 2, 3, 1] and len(old.tokens) == 6001
    assert new.tokens.tolist() == [4, 5, 100]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["meta.json", "starts.npy", "suffixes.npy", "tokens.npy"]


def test_finding_a_pattern_gives_exactly_its_occurrences(tmp_path):
    rng = random.Random(0)
    documents = [[rng.randrange(3) for _ in range(80)] for _ in range(4)]
    store = stored(tmp_path, documents, vocab_size=3)
    for length in (1, 2, 4, 9):
        for _ in range(20):
            pattern = [rng.randrange(3) for _ in range(length)]
            low, high = store.find(pattern)
            found = [store.tokens[at : at + length].tolist() for at in store.suffixes[low:high]]
            expected = sum(d[at : at + length] == pattern for d in documents for at in range(len(d) - length + 1))
            assert found == [pattern] * expected


def test_a_token_outside_the_vocabulary_is_found_nowhere(tmp_path):
    store = stored(tmp_path, [[1, 2, 3]])
    assert store.find([100, 1]) == (0, 0)
    assert store.find([-1]) == (0, 0)


def test_continuations_become_a_trie_ranked_by_count(tmp_path):
    documents = [[1, 2, 7, 8]] * 5 + [[1, 2, 7, 9]] * 3 + [[1, 2, 6]] * 2
    proposal = propose(Retrieval(stored(tmp_path, documents), shortest=2), [0, 1, 2], 64)
    nodes = {}
    paths: list[tuple[int, ...]] = []
    for token, parent, score in zip(proposal.tokens, proposal.parents, proposal.scores, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
        nodes[paths[-1]] = score
    assert set(nodes) == {(7,), (7, 8), (7, 9), (6,)}
    assert nodes[(7,)] == pytest.approx(4 * nodes[(6,)])
    assert nodes[(7, 8)] == pytest.approx(5 / 3 * nodes[(7, 9)])


def test_a_text_that_was_not_known_for_a_while_is_found_again_token_by_token(tmp_path):
    session = Retrieval(stored(tmp_path, [[1, 2, 3, 4, 5, 6]])).open([40, 41])
    for token in (42, 43, 44):
        assert not session.propose(8)
        session.extend([token])
    for token in (1, 2):
        assert not session.propose(8)
        session.extend([token])
    assert session.propose(8).tokens == (3, 4, 5, 6)


@pytest.mark.parametrize("budget", [1, 2, 5, 17, 64])
def test_the_best_nodes_within_the_budget_are_connected_and_the_most_frequent(tmp_path, budget):
    rng = random.Random(budget)
    documents = [[1, 2] + [rng.choice([3, 3, 4, 5]) for _ in range(8)] for _ in range(60)]
    proposal = propose(Retrieval(stored(tmp_path, documents), longest=2, tokens=6), [1, 2], budget)
    counts: dict[tuple[int, ...], int] = {}
    for document in documents:
        for depth in range(1, 7):
            path = tuple(document[2 : 2 + depth])
            counts[path] = counts.get(path, 0) + 1
    paths: list[tuple[int, ...]] = []
    for at, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        assert -1 <= parent < at
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths) == min(budget, len(counts))
    assert sorted((counts[p] for p in paths), reverse=True) == sorted(counts.values(), reverse=True)[:budget]


def test_the_longest_suffix_in_the_datastore_decides(tmp_path):
    documents = [[9, 1, 2, 50], [1, 2, 60], [1, 2, 60]]
    store = stored(tmp_path, documents)
    assert propose(Retrieval(store), [9, 1, 2], 8).tokens == (50,)
    assert set(propose(Retrieval(store), [8, 1, 2], 8).tokens) == {50, 60}


def test_nothing_is_proposed_below_the_shortest_suffix(tmp_path):
    store = stored(tmp_path, [[1, 2, 60]])
    assert len(propose(Retrieval(store), [2], 8)) == 0
    assert len(propose(Retrieval(store), [7, 2], 8)) == 0
    assert len(propose(Retrieval(store, shortest=1), [7, 2], 8)) == 1


def test_continuations_do_not_run_into_the_next_document(tmp_path):
    store = stored(tmp_path, [[1, 2, 3], [4, 5, 6]])
    assert propose(Retrieval(store), [1, 2], 8).tokens == (3,)
    assert propose(Retrieval(store), [5, 6], 8).tokens == ()
    assert propose(Retrieval(store, shortest=1), [3, 4, 5], 8).tokens == (6,)


def test_a_session_finds_what_a_fresh_look_finds(tmp_path):
    rng = random.Random(5)
    store = stored(tmp_path, [[rng.randrange(4) for _ in range(300)] for _ in range(3)], vocab_size=4)
    options = Retrieval(store, tokens=3)
    text = [rng.randrange(4) for _ in range(3)]
    session = options.open(text)
    for step in range(60):
        more = session.propose(4).tokens[: rng.randrange(3)] or (rng.randrange(4),)
        session.extend(more)
        text.extend(more)
        if step % 3:  # a session need not be asked after every token
            assert session.propose(16) == propose(options, text, 16)


def test_a_frequent_suffix_is_sampled_evenly(tmp_path):
    store = stored(tmp_path, [[1, 2, 3]] * 90 + [[1, 2, 4]] * 10)
    proposal = propose(Retrieval(store, matches=20), [1, 2], 8)
    assert proposal.tokens == (3, 4)
    assert proposal.scores[0] == pytest.approx(9 * proposal.scores[1])


def test_a_large_vocabulary_keeps_its_ids(tmp_path):
    store = stored(tmp_path, [[70_000, 65_535, 131_071]], vocab_size=131_072)
    assert propose(Retrieval(store), [70_000, 65_535], 8).tokens == (131_071,)


def test_a_missing_datastore_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"no datastore at .*nowhere; build one"):
        Datastore.open(tmp_path / "nowhere")


def test_a_datastore_of_another_tokenizer_is_refused(tmp_path):
    build(tmp_path, [[1, 2]], 10, "mine")
    with pytest.raises(ModelError, match="another tokenizer"):
        Datastore.open(tmp_path, "yours")
    assert Datastore.open(tmp_path).meta.tokenizer_digest == "mine"


@pytest.mark.parametrize("name", ["tokens.npy", "suffixes.npy", "starts.npy", "meta.json"])
def test_a_truncated_file_is_found_on_opening(tmp_path, name):
    build(tmp_path, [list(range(50))], 64, "d")
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(raw[: len(raw) - 8])
    with pytest.raises(ModelError, match="damaged"):
        Datastore.open(tmp_path, "d")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("vocab_size", "64", "vocab_size"),
        ("tokens", None, "tokens"),
        ("documents", -1, "documents"),
        ("tokenizer_digest", 7, "tokenizer_digest"),
        ("order", "by length", "order"),
        ("format", 2, "format 2 instead of 1"),
        ("format", "1", "format"),
    ],
)
def test_an_unknown_or_wrong_field_of_the_description_is_named(tmp_path, field, value, said):
    build(tmp_path, [list(range(50))], 64, "d")
    file = tmp_path / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ModelError, match=said):
        Datastore.open(tmp_path, "d")


def test_a_description_of_another_format_is_told_by_its_number_alone(tmp_path):
    build(tmp_path, [list(range(50))], 64, "d")
    file = tmp_path / "meta.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({"format": 2, "order": "by length"}))
    with pytest.raises(ModelError, match="has format 2 instead of 1"):
        Datastore.open(tmp_path, "d")
    del fields["format"]
    file.write_text(json.dumps(fields))
    with pytest.raises(ModelError, match=r"damaged .*`format`"):
        Datastore.open(tmp_path, "d")


def test_files_that_do_not_belong_together_are_found_on_opening(tmp_path):
    build(tmp_path / "a", [[1, 2, 3]], 10)
    build(tmp_path / "b", [[1, 2, 3, 4]], 10)
    (tmp_path / "a" / "tokens.npy").write_bytes((tmp_path / "b" / "tokens.npy").read_bytes())
    with pytest.raises(ModelError, match="differ in length"):
        Datastore.open(tmp_path / "a")


def test_an_empty_datastore_or_a_foreign_id_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no text"):
        build(tmp_path, [[]], 10)
    with pytest.raises(ConfigError, match="document 1 holds a token id outside"):
        build(tmp_path, [[1], [10]], 10)
