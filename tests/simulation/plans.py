"""What a seed stands for: who takes part, what is asked of them, how the network behaves, and what goes wrong when."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

# All but rest, which needs a datastore. In this order, so that a seed stays the plan that it was.
METHODS = [
    "vanilla",
    "sps",
    "pearl",
    "duodecoding",
    "tree",
    "pld",
    "lookahead",
    "auto",
    "pld-earliest",
    "sam",
    "duodecoding-lockstep",
]
FIRST, SECOND = "verifier", "verifier-2"
HOSTS = ("c1", "c2", "c3", "gateway")  # hosts of clients; a gateway is asked over HTTP
GATEWAYS = ("gateway", "gateway-2")
LEARNER = "learner"
STREAMS_S = 3.0  # in which streams begin
TROUBLES_S = 5.0  # and in which troubles begin
FEW_ROOMS = 2  # texts that a draft model mirrors at once
SMALL_POOL = 300  # slots, where a stream asks for some 100
LEARNING_S = 8.0  # in which a learner's troubles begin: it has a candidate every half second at best
# Of a learner's change of versions, in their order: it may end before each.
STEPS = ("promote", "write", "clean", "say", "undo")

What = Literal[
    "kill",  # a process dies as by SIGKILL, and is started again after ``seconds``
    "stop",  # the same in order, as by SIGTERM
    "freeze",  # a process does not run for ``seconds``, as after SIGSTOP
    "cut",  # a host's connection breaks with what is under way; it is made anew after ``seconds``
    "hold",  # a host's messages are under way for ``seconds``, and then come in order
    "partition",  # a drafter's or controller's messages vanish for ``seconds`` without a broken connection
    "swap",  # the operator moves the streams of ``who`` to another drafter
    "drain",  # the operator asks a drafter to leave
    "hostile",  # a peer in the role ``who``, or a gateway's caller, says whatever comes to its mind for ``seconds``
    "break",  # the forwards of ``who``, a verifier or a drafter, raise for ``seconds``
    "undo",  # the operator asks the learner to go back
    "interrupt",  # the learner dies in its next change of versions, before its step ``who``
]


class Draft(msgspec.Struct, frozen=True):
    """A drafter. ``skill``: how often its first guess is right; a liar's is 0, and it is as sure as the others."""

    name: str
    skill: float
    step_us: float
    rooms: int  # texts that its model holds
    verifier: str = FIRST


class Stream(msgspec.Struct, frozen=True):
    at: float
    host: str
    prompt: tuple[int, ...]
    tokens: int
    method: str
    temperature: float
    seed: int
    gamma: int
    leave_at: int = 0  # tokens after which the caller leaves; 0: it reads to the end
    pause_at: int = 0  # tokens after which the caller does not read for a while
    pause_s: float = 0.0
    ignore_eos: bool = False


class Trouble(msgspec.Struct, frozen=True):
    at: float
    what: What
    who: str
    seconds: float = 0.0


class Learning(msgspec.Struct, frozen=True):
    """A learner of the first verifier, and its candidates. ``eager``: it works while streams run, too; the real one
    does after some hundred rounds."""

    eager: bool
    piece_s: float  # length of its work
    drift: float  # change of the draft's skill in a step of training, at most, up or down
    unsound: float  # share of candidates that replay well and that no drafter can load
    load_s: float  # time that drafters take to load one, at most


class Rates(msgspec.Struct, frozen=True):
    """Rates of a message's fates. ``delay``: milliseconds at most."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: int = 0


class Plan(msgspec.Struct, frozen=True):
    seed: int
    compute: Literal["inline", "thread", "late thread"]  # a thread's job may run early or late in a forward's time
    slots: int
    eos_rate: float
    controller: bool
    rates: Rates
    drafts: tuple[Draft, ...]
    streams: tuple[Stream, ...]
    troubles: tuple[Trouble, ...]
    mixes_prompts: bool = False
    inline_draft: Draft | None = None  # a verifier's own; one with few rooms that is never right fails
    verifiers: tuple[str, ...] = (FIRST,)  # over which every client and the gateway spread their streams
    learning: Learning | None = None

    def drafts_at(self, verifier: str) -> list[Draft]:
        return [draft for draft in self.drafts if draft.verifier == verifier]


def plan_of(seed: int) -> Plan:
    chance = random.Random(seed)
    drafts = tuple(_draft(chance, f"d{number}") for number in range(chance.choice((0, 1, 1, 2, 2, 3))))
    rates = Rates() if chance.random() < 0.3 else _rates(chance)
    return Plan(
        seed,
        chance.choice(("inline", "thread", "late thread")),
        SMALL_POOL if chance.random() < 0.25 else 1 << 14,
        chance.choice((0.0, 0.0, 0.02)),
        chance.random() < 0.8,
        rates,
        drafts,
        tuple(_stream(chance, number) for number in range(chance.randrange(1, 7))),
        tuple(_trouble(chance, [draft.name for draft in drafts]) for _ in range(chance.randrange(0, 8))),
        chance.random() < 0.5,
        _draft(chance, "inline") if chance.random() < 0.5 else None,
    )


def with_second(plan: Plan) -> Plan:
    """The plan with a second verifier, its drafters and more trouble, most of it what makes streams change verifiers.
    Drawn apart, so that a seed's plan of one verifier stays what it was."""
    chance = random.Random(f"{plan.seed} with a second")
    replace = msgspec.structs.replace
    drafts = [replace(_draft(chance, f"e{number}"), verifier=SECOND) for number in range(chance.choice((0, 1, 1, 2)))]
    names = [draft.name for draft in drafts]
    troubles = [
        _moving(chance) if chance.random() < 0.7 else _trouble(chance, names) for _ in range(chance.randrange(5))
    ]
    troubles = [replace(one, who=SECOND) if one.who == FIRST and chance.random() < 0.5 else one for one in troubles]
    return replace(
        plan,
        drafts=(*plan.drafts, *drafts),
        troubles=(*plan.troubles, *troubles),
        verifiers=(FIRST, SECOND),
    )


def with_learner(plan: Plan) -> Plan:
    """The plan with a learner, what troubles it, and streams over another gateway and hostile callers of both. Drawn
    apart, as :func:`with_second`. A hostile learner takes the place of one that is killed."""
    chance = random.Random(f"{plan.seed} with a learner")
    replace = msgspec.structs.replace
    eager = chance.random() < 0.7
    chance.randrange(3)  # a draw without use: without it every seed would be another plan
    learning = Learning(
        eager,
        chance.choice((0.002, 0.01)),
        chance.choice((0.01, 0.03)),
        chance.choice((0.0, 0.0, 0.3)),
        chance.choice((0.05, 1.0, 4.0)),
    )
    streams = [
        replace(stream, host=GATEWAYS[1]) if stream.host == GATEWAYS[0] and chance.random() < 0.5 else stream
        for stream in plan.streams
    ]
    troubles = [_learning(chance) for _ in range(chance.randrange(1, 7))]
    usurped = [replace(one, what="kill") for one in troubles if (one.what, one.who) == ("hostile", LEARNER)]
    return replace(plan, streams=tuple(streams), troubles=(*plan.troubles, *usurped, *troubles), learning=learning)


def _learning(chance: random.Random) -> Trouble:
    """A learner ends, is silent, dies half-way through a change, or is told to go back; others say what they like."""
    what, who, longest = chance.choice(
        (
            ("kill", LEARNER, 3.0),
            ("stop", LEARNER, 2.0),
            ("freeze", LEARNER, 5.0),
            (chance.choice(("cut", "hold")), LEARNER, 5.0),
            ("interrupt", chance.choice(STEPS), 0.0),
            ("interrupt", chance.choice(STEPS), 0.0),
            ("undo", "operator", 0.0),
            ("undo", "operator", 0.0),
            ("hostile", LEARNER, 3.0),
            ("hostile", chance.choice(GATEWAYS), 1.0),
            ("kill", FIRST, 2.0),
        )
    )
    return Trouble(round(chance.uniform(0.0, LEARNING_S), 3), what, who, round(chance.uniform(0.0, longest), 3))


def _moving(chance: random.Random) -> Trouble:
    """A verifier ends or is silent, or a client hears none for a while."""
    client = chance.choice(HOSTS)
    what, who, longest = chance.choice(
        (
            ("kill", FIRST, 2.0),
            ("stop", FIRST, 2.0),
            ("freeze", FIRST, 5.0),
            ("hold", client, 5.0),
            ("cut", client, 4.0),
        )
    )
    return Trouble(round(chance.uniform(0.0, TROUBLES_S), 3), what, who, round(chance.uniform(0.0, longest), 3))


def _draft(chance: random.Random, name: str) -> Draft:
    skill = 0.0 if chance.random() < 0.15 else chance.uniform(0.4, 1.0)
    step_us = chance.choice((2000.0, 5000.0, 20_000.0, 500_000.0 if chance.random() < 0.2 else 10_000.0))
    return Draft(name, round(skill, 2), step_us, chance.choice((FEW_ROOMS, 64, 64)))


def _rates(chance: random.Random) -> Rates:
    drop, duplicate, reorder = (round(chance.random() * chance.choice((0.0, 0.1, 0.3)), 3) for _ in range(3))
    return Rates(drop, duplicate, reorder, chance.choice((0, 0, 2, 20, 100)))


def _stream(chance: random.Random, number: int) -> Stream:
    tokens = chance.choice((5, 30, 60, 120))
    leave_at = chance.randrange(1, tokens) if chance.random() < 0.2 else 0
    pause_at, pause_s = 0, 0.0
    if chance.random() < 0.1:
        pause_at, pause_s = chance.randrange(1, tokens), chance.choice((0.5, 12.0))
    prompt = tuple(chance.randrange(2, 60) for _ in range(chance.choice((1, 3, 30, 90))))
    return Stream(
        round(chance.uniform(0.0, STREAMS_S), 3),
        chance.choice(HOSTS),
        prompt,
        tokens,
        chance.choice(METHODS),
        chance.choice((0.0, 0.8)),
        number,
        chance.choice((0, 0, 1, 5)),
        leave_at,
        pause_at,
        pause_s,
    )


def _trouble(chance: random.Random, drafters: list[str]) -> Trouble:
    drafter = chance.choice(drafters) if drafters else "verifier"
    client = chance.choice(HOSTS)
    inner = chance.choice((drafter, drafter, "controller"))
    what, who, longest = chance.choice(
        (
            ("kill", chance.choice((drafter, drafter, "controller")), 4.0),
            ("kill", chance.choice(("verifier", client)), 2.0),
            ("stop", chance.choice((drafter, "verifier", "controller")), 2.0),
            ("freeze", chance.choice((drafter, "verifier", "controller", client)), 5.0),
            ("cut", chance.choice((drafter, "controller", client)), 4.0),
            ("hold", chance.choice((drafter, "controller", client)), 5.0),
            ("partition", inner if drafters or inner == "controller" else "controller", 5.0),
            ("swap", drafter, 0.0),
            ("drain", drafter, 0.0),
            ("hostile", chance.choice(("client", "drafter", "controller")), 1.0),
            ("break", chance.choice((drafter, "verifier")), 0.05),
        )
    )
    return Trouble(round(chance.uniform(0.0, TROUBLES_S), 3), what, who, round(chance.uniform(0.0, longest), 3))
