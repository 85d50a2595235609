"""What the verifier's own draft model is told of a text, and when."""

from actors.tree.calibration import Calibration, TextCalibration
from actors.tree.tree import TokenTree
from actors.verifier.decoding.inline_tree import InlineTree
from fakes import ToyDraft
from protocols.errors import PoolFull
from protocols.messages import Sampling

PROMPT = [3, 4, 5]


class Told(ToyDraft):
    """Keeps what it hears."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.commits: list[list[int]] = []

    def commit(self, handle, tokens, slots):
        self.commits.append(list(tokens))
        super().commit(handle, tokens, slots)


def tree_of(model) -> InlineTree:
    handle = model.open(PROMPT, len(PROMPT), Sampling(max_tokens=50))
    tree = TokenTree(len(PROMPT), PROMPT[-1])
    return InlineTree("r", tree, model, handle, frozenset(), 100, TextCalibration(Calibration()))


def drafted(tree: InlineTree) -> None:
    """The root and its likeliest child are expanded."""
    tree.begin()
    for _ in range(2):
        _, node = max(tree.promises(0.0), key=lambda found: found[0])
        tree.expanded(node, tree.model.expand([tree.leaf(node)])[0], 64)


def test_a_text_that_rests_is_told_once_when_the_model_is_asked_again():
    tree = tree_of(model := Told())
    for token in (7, 8, 9):
        tree.advance([token])
    assert model.commits == []
    tree.catch_up()
    assert model.commits == [[7, 8, 9]]
    drafted(tree)  # asserts that the root is the last committed token
    tree.catch_up()
    assert model.commits == [[7, 8, 9]]


def test_what_the_model_has_computed_is_told_at_once():
    tree = tree_of(model := Told())
    drafted(tree)
    child = next(node for node in tree.tree.nodes() if node.expanded)
    tree.advance([child.token, 9])
    assert model.commits == [[child.token, 9]] and not model.paths
    tree.advance([10])
    tree.catch_up()
    assert model.contexts[tree.handle][0] == [*PROMPT, child.token, 9, 10]


def test_a_text_that_has_outgrown_the_model_while_it_rested_is_lost_to_it():
    class Full(ToyDraft):
        def commit(self, handle, tokens, slots):
            raise PoolFull("outgrown")

    tree = tree_of(Full())
    tree.advance([7])
    assert not tree.lost
    tree.catch_up()
    assert tree.lost
