import itertools
from collections.abc import Callable, Iterator

import pytest

from actors.tree.accept import ROOT, walk

Model = Callable[[tuple[int, ...]], int]


def plain(model: Model, count: int) -> list[int]:
    text: tuple[int, ...] = ()
    for _ in range(count):
        text += (model(text),)
    return list(text)


def path_to(node: int, tokens: tuple[int, ...], parents: tuple[int, ...]) -> tuple[int, ...]:
    return () if node == ROOT else (*path_to(parents[node], tokens, parents), tokens[node])


def trees(nodes: int, vocabulary: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every tree of that many nodes with every labelling, equal siblings included."""
    for parents in itertools.product(*(range(-1, i) for i in range(nodes))):
        for tokens in itertools.product(range(vocabulary), repeat=nodes):
            yield tokens, parents


def models(depth: int, vocabulary: int) -> Iterator[Model]:
    """Every function from texts shorter than ``depth`` to a token."""
    texts = [t for n in range(depth) for t in itertools.product(range(vocabulary), repeat=n)]
    for answers in itertools.product(range(vocabulary), repeat=len(texts)):
        table = dict(zip(texts, answers, strict=True))
        yield lambda text, table=table: table.get(text, 0)


@pytest.mark.parametrize(("nodes", "vocabulary"), [(0, 2), (1, 3), (2, 2), (3, 2)])
def test_every_tree_commits_what_plain_decoding_commits(nodes, vocabulary):
    for model in models(min(3, nodes + 1), vocabulary):
        for tokens, parents in trees(nodes, vocabulary):
            sampled = [model(())] + [model(path_to(i, tokens, parents)) for i in range(nodes)]
            path, final = walk(tokens, parents, sampled)
            committed = [tokens[i] for i in path] + [final]
            assert committed == plain(model, len(committed))


@pytest.mark.parametrize(("nodes", "vocabulary"), [(1, 3), (2, 2), (3, 2), (4, 2)])
def test_the_path_is_as_long_as_the_samples_allow(nodes, vocabulary):
    for tokens, parents in trees(nodes, vocabulary):
        for sampled in itertools.product(range(vocabulary), repeat=nodes + 1):
            path, final = walk(tokens, parents, sampled)
            at = ROOT
            for node in path:
                assert parents[node] == at
                assert tokens[node] == sampled[at + 1]
                at = node
            assert final == sampled[at + 1]
            assert not any(p == at and t == final for t, p in zip(tokens, parents, strict=True))


def test_of_equal_siblings_the_first_counts():
    assert walk([5, 5, 6], [ROOT, ROOT, 1], [5, 6, 6, 0]) == ([0], 6)


def test_ties_of_the_argmax_go_to_the_lowest_id_in_every_row():
    """Exact enumeration: with logits of two levels only, all trees agree with plain decoding that breaks ties so."""
    for levels in itertools.product([0.0, 1.0], repeat=9):
        rows = [levels[0:3], levels[3:6], levels[6:9]]  # logits after texts that end with token 0, 1, 2

        def model(text: tuple[int, ...], rows: list[tuple[float, ...]] = rows) -> int:
            row = rows[text[-1] if text else 0]
            return row.index(max(row))

        for tokens, parents in trees(2, 3):
            sampled = [model(())] + [model(path_to(i, tokens, parents)) for i in range(2)]
            path, final = walk(tokens, parents, sampled)
            committed = [tokens[i] for i in path] + [final]
            assert committed == plain(model, len(committed))
