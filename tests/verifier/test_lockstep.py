"""The verifier's and the drafter's state machines against each other over a channel that misbehaves.

No sockets, no clock, no torch: each seed is one interleaving of a lossy, reordering, repeating channel.
"""

import random

import msgspec
import pytest

from actors.calibration import Calibration
from actors.drafter.lease import Lease, Limits
from actors.models import Leaf
from protocols.messages import Close, FinishReason, Grow, Open, Plan, Resync, Sampling, Verdict
from tests.world.datastores import toy_sources
from tests.world.models import EOS, INFO, VOCAB, ToyDraft, ToyLanguage, ToyTarget
from tests.world.table import Table, asked

PROMPT = [5, 9, 33]


class Pair:
    """One request, its verifier and its drafter; messages wait in two bags from which a random one is delivered."""

    def __init__(
        self, seed, method, gamma, sequences, sampling, language, skill, drop=0.0, repeat=0.0, scratch=64, sources=None,
        prompt=PROMPT,
    ):  # fmt: skip
        self.random = random.Random(seed)
        self.drop, self.repeat = drop, repeat
        self.draft = ToyDraft(language, skill, scratch_slots=scratch)
        plan = Plan(method, gamma or None, sequences or None)
        self.prompt = prompt
        self.stream = asked(prompt, method, sampling=sampling, plan=plan, ends=INFO.eos_token_ids)
        self.stream.message = msgspec.structs.replace(
            self.stream.message, num_speculative_tokens=gamma, sequences=sequences
        )
        self.now = 0.0
        self.table = Table(ToyTarget(language), self.stream, sources, lambda: self.now / 1e6)
        self.table.connect()
        self.calibration = Calibration()
        self.lease: Lease | None = None
        self.to_drafter: list = []
        self.to_verifier: list = []

    @property
    def finish(self) -> FinishReason | None:
        return self.stream.output.finish

    def send(self, bag: list, message) -> None:
        if self.random.random() >= self.drop:
            bag.append(message)
        if self.random.random() < self.repeat:
            bag.append(message)

    def take(self, bag: list):
        # In order unless this channel repeats: a repeating channel reorders, too.
        return bag.pop(self.random.randrange(len(bag)) if self.repeat else 0)

    def drafter_receives(self) -> None:
        message = self.take(self.to_drafter)
        match message:
            case Close():
                pass
            case Open():
                if self.lease is not None:
                    if len(self.lease.committed) >= len(message.prefix):
                        return
                    self.draft.close(self.lease.handle)
                handle = self.draft.open(message.prefix, message.prompt_len, message.sampling)
                limits = Limits(self.draft.scratch_slots, INFO.max_context, INFO.vocab_size, INFO.eos_token_ids)
                self.lease = Lease(message, handle, limits, self.calibration)
            case Verdict() if self.lease is None:
                self.send(self.to_verifier, Resync("r", message.epoch, 0))
            case Verdict():
                change = self.lease.verdict(message, self.now)
                if isinstance(change, Resync):
                    self.send(self.to_verifier, change)
                elif change is not None:
                    self.draft.commit(self.lease.handle, change.tokens, change.slots)
                    self.draft.release(self.lease.handle, change.dead)

    def drafter_works(self) -> None:
        lease = self.lease
        if lease is None:
            return
        nodes = lease.wanted(4)
        if nodes:
            for node, expansion in zip(
                nodes, self.draft.expand([Leaf.of(lease.handle, lease.tree, n) for n in nodes]), strict=True
            ):
                lease.expanded(node, expansion)
        if lease.must_flush(self.now) or self.random.random() < 0.2:
            self.send(self.to_verifier, lease.flush(self.now))

    def verifier_receives(self) -> None:
        message, remote = self.take(self.to_verifier), self.table.verifier.sources["drafter"]
        match message:
            case Grow():
                remote.arrived(Table.DRAFTER, message)
            case Resync():
                remote.resync(Table.DRAFTER, message)
        self.tell()

    def verifier_works(self) -> None:
        self.table.forward()
        self.tell()

    def tell(self) -> None:
        for message in self.table.listener.sent:
            self.send(self.to_drafter, message)
        self.table.listener.sent.clear()

    def run(self) -> list[int]:
        steps = 0
        while self.finish is None:
            steps += 1
            self.now += 150.0
            assert steps < 20000, "no progress"
            choices = [self.verifier_works, self.drafter_works, self.drafter_works]
            choices += [self.drafter_receives] * bool(self.to_drafter)
            choices += [self.verifier_receives] * bool(self.to_verifier)
            self.random.choice(choices)()
        return self.stream.text.committed[len(self.prompt) :]


RETRIEVING = ["pld", "pld-earliest", "sam", "rest", "lookahead"]
METHODS = ["vanilla", "sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto", *RETRIEVING]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return toy_sources(tmp_path_factory.mktemp("store"), ToyLanguage(), PROMPT)


@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_the_targets_own_whatever_the_channel_does(method, sources):
    language = ToyLanguage(eos_rate=0.01)
    for seed in range(12):
        gamma = (1, 4, 9)[seed // 4]
        sampling = Sampling(temperature=0.8 * (seed % 3 > 0), seed=seed, max_tokens=40)
        pair = Pair(seed, method, gamma, seed % 4, sampling, language, 0.8, drop=0.15, repeat=0.15, sources=sources)
        assert pair.run() == language.continuation(PROMPT, sampling)


@pytest.mark.parametrize("method", ["pld", "pld-earliest", "sam", "auto"])
def test_a_text_that_repeats_its_prompt_takes_few_rounds(method, sources):
    language = ToyLanguage()
    prompt = [*PROMPT, *language.continuation(PROMPT, Sampling(max_tokens=90)), *PROMPT]
    sampling = Sampling(max_tokens=80)
    pair = Pair(0, method, 0, 0, sampling, language, 0.0, drop=1.0, prompt=prompt)  # a drafter that is never heard
    assert pair.run() == language.continuation(prompt, sampling)
    assert pair.stream.tally.rounds < 20


@pytest.mark.parametrize("method", ["rest", "auto"])
def test_a_text_that_the_datastore_knows_takes_few_rounds(method, sources):
    sampling = Sampling(max_tokens=80)
    pair = Pair(0, method, 0, 0, sampling, ToyLanguage(), 0.0, drop=1.0, sources=sources)
    assert pair.run() == ToyLanguage().continuation(PROMPT, sampling)
    assert pair.stream.tally.rounds < 30


def test_lookahead_learns_the_ngrams_of_a_text_that_goes_in_circles():
    class Circle(ToyLanguage):
        def next(self, context, sampling):
            return 2 + (context[-1] * 7 + 3) % 61

    sampling = Sampling(max_tokens=150)
    pair = Pair(0, "lookahead", 0, 0, sampling, Circle(), 0.0)
    assert pair.run() == Circle().continuation(PROMPT, sampling)
    assert pair.stream.tally.rounds < 75


def test_the_windows_of_other_methods_stay_within_32_rows(sources):
    for method in METHODS:
        pair = Pair(0, method, 4, 0, Sampling(), ToyLanguage(), 0.5, sources=sources)
        assert pair.stream.wait.max_window == {"lookahead": 55, "rest": 63}.get(method, 31)


def test_a_guess_that_no_drafter_made_says_nothing_about_the_drafter(sources):
    pair = Pair(0, "auto", 0, 0, Sampling(max_tokens=60), ToyLanguage(), 1.0, drop=1.0, sources=sources)
    pair.run()
    assert pair.stream.tally.accepted > 20
    assert pair.stream.wait.agreement.mean == 0.6


@pytest.mark.parametrize("skill", [0.0, 1.0])
def test_neither_a_useless_nor_a_perfect_drafter_changes_the_text(skill, sources):
    language = ToyLanguage(eos_rate=0.02)
    for seed in range(4):
        for method in METHODS:
            sampling = Sampling(temperature=1.0, seed=seed, max_tokens=30)
            pair = Pair(seed, method, 5, 0, sampling, language, skill, sources=sources)
            assert pair.run() == language.continuation(PROMPT, sampling)


def test_a_perfect_drafter_on_a_sound_channel_saves_rounds():
    for method in ("sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree"):
        sampling = Sampling(max_tokens=60)
        gamma = 0 if method == "tree" else 6  # verdicts come so late here that a tree needs all its depth
        pair = Pair(1, method, gamma, 0, sampling, ToyLanguage(), 1.0)
        pair.run()
        assert pair.stream.tally.rounds < 40
        assert pair.stream.tally.accepted == pair.stream.tally.drafted or method == "tree"


def test_a_lease_never_asks_for_more_slots_than_there_are():
    for seed in range(6):
        pair = Pair(seed, "tree", 0, 0, Sampling(max_tokens=60), ToyLanguage(), 0.7, scratch=5)
        pair.run()  # ToyDraft asserts it


def test_stop_tokens_end_the_text_and_ignore_eos_does_not():
    language = ToyLanguage(eos_rate=0.2)
    ended = Pair(3, "duodecoding", 4, 0, Sampling(max_tokens=50), language, 0.9)
    assert ended.run()[-1] == EOS and ended.finish is FinishReason.STOP
    going_on = Pair(3, "duodecoding", 4, 0, Sampling(max_tokens=50, ignore_eos=True), language, 0.9)
    assert len(going_on.run()) == 50 and going_on.finish is FinishReason.LENGTH


def test_a_message_of_another_epoch_is_fenced_off():
    pair = Pair(0, "pearl", 4, 0, Sampling(), ToyLanguage(), 1.0)
    pair.table.forward()
    remote, counters = pair.table.verifier.sources["drafter"], pair.table.verifier.state.counters
    epoch, length = pair.stream.loan.epoch, len(pair.stream.text)
    for other, base_len, token, why in ((1, length, 2, "lease"), (0, 9, 2, "base_len"), (0, length, VOCAB, "fragment")):
        remote.arrived(Table.DRAFTER, Grow("r", epoch + other, base_len, (-1,), (token,), (0.0,)))
        assert counters[f"fenced_{why}"] == 1 and pair.stream.tree.size == 0
    remote.arrived(Table.DRAFTER, Grow("r", epoch, length, (-1,), (2,), (0.0,)))
    assert pair.stream.tree.size == 1
