"""What must hold when all streams are over: nothing is left of them, and nothing has grown."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from actors.learner.versions import KEPT
from tests.simulation.plans import FIRST, LEARNER
from tests.simulation.school import DIRECTORY
from tests.world.network import MemoryNetwork

if TYPE_CHECKING:
    from tests.simulation.world import World

MAX_KEPT = 8  # mirrors that a drafter keeps of ended leases
FORGETS = ("network", "model", "compute", "tokenizing", "listener", "link")  # not the actors' own books


def left(world: World) -> list[str]:
    """Requests, KV slots, leases, messages, clients and calls that should be gone; actors that should be there."""
    counts: dict[str, int] = {}
    for name in world.plan.verifiers:
        counts |= {f"{what} ({name})": count for what, count in _left_at(world, name).items()}
    for name, drafter in world.drafters.items():
        counts[f"leases at {name}"] = len(drafter.leases)
        generations = drafter.generations
        counts[f"texts too many at {name}"] = max(0, len(generations.current.model.contexts) - MAX_KEPT)
        counts[f"weights too many at {name}"] = len(generations._held) - 1
        counts[f"messages unread by {name}"] = len(drafter.line.link.inbox)
    listeners = sum(name in world.hosts for name in ("controller", LEARNER))
    counts["subscriptions too many"] = max(0, len(world.network.feeds) - listeners)
    counts |= _left_of_learning(world)
    for name, one in world.clients.items():
        connection = one.client._connection if one.client is not None else None
        if connection is not None:
            counts[f"calls of {name}"] = len(connection._session.calls)
            counts[f"mailboxes of {name}"] = len(connection._mailboxes)
    return [f"{count} {what}" for what, count in counts.items() if count]


def _left_at(world: World, name: str) -> dict[str, int]:
    """What is left at one verifier."""
    verifier, target = world.verifiers[name], world.targets[name]
    state = verifier.state
    names = {draft.name for draft in world.plan.drafts_at(name)}
    controlled = world.plan.controller and name == world.plan.verifiers[0]
    counts = {
        "requests at the verifier": len(state.requests),
        "requests arriving": len(verifier.admission._arriving),
        "KV slots in use": target.kv_used,
        "requests of the target": len(target.open_requests),
        "messages unread by the verifier": len(verifier.listener.inbox),
        "clients too many": max(0, len(state.clients) - len(world.clients)),
        "drafters missing": len(names - {drafter.actor_id for drafter in state.drafters.by_peer.values()}),
        "drafters too many": max(0, len(state.drafters.by_peer) - len(names)),
        "controllers missing": int(controlled and state.controller is None),
    }
    inline = verifier.context.equipment.inline
    if inline is not None:
        counts["texts too many of the verifier's own draft"] = max(0, len(inline.model.contexts) - MAX_KEPT)
        counts["weights too many of the verifier's own draft"] = max(0, len(inline.generations._held) - 2)
    for peer in state.drafters.by_peer.values():
        counts[f"leases of {peer.actor_id} at the verifier"] = peer.leases
    return counts


def _left_of_learning(world: World) -> dict[str, int]:
    """All that was learned is promoted or given up, and what is in force serves everywhere."""
    school = world.school
    if school is None:
        return {}
    if school.learner is None:
        return {"learners missing": 1}
    verifier, learner, current = world.verifiers[FIRST], school.learner, school.current
    promoted, inline = verifier.state.promoted, verifier.context.equipment.inline
    told = (promoted.version, promoted.path) if promoted is not None else (0, "")
    counts = {
        "learners missing": int(verifier.state.learner is None),
        "texts that the learner is not told": len(verifier.learning._waiting),
        "messages unread by the learner": len(learner.line.link.inbox),
        "lessons to come": int(school.busy),
        "directories of versions too many": max(0, len(list(DIRECTORY.glob("version-*"))) - KEPT - 1),
        "versions in force that the verifier does not know": int(told != (current.number, current.path)),
    }
    for draft in world.plan.drafts_at(FIRST):
        serves = draft.name in world.drafters and school.agrees(world.drafters[draft.name].generations)
        counts[f"versions in force that {draft.name} does not serve with"] = int(not serves)
    if inline is not None:
        counts["versions in force that the verifier does not draft with"] = int(not school.agrees(inline.generations))
    return counts


def unclosed(network: MemoryNetwork) -> list[str]:
    """What is open although every process has ended."""
    ends = {"listener": network.listeners.values(), "connection": network.links, "subscription": network.feeds}
    return [f"a {kind} to {end.address} is open" for kind, found in ends.items() for end in found]


def remembered(world: World) -> list[str]:
    """Where an actor still knows a request that is over: what is kept of each grows for ever."""
    rids = {told.rid for told in world.told if told.rid}
    actors: dict[str, Any] = {**world.verifiers, **world.drafters}
    if world.school is not None:
        actors[LEARNER] = world.school.learner
    return [f"{name}{path} remembers a request" for name, actor in actors.items() for path in _paths(actor, rids)]


def _paths(root: Any, rids: Collection[str]) -> Iterator[str]:
    seen: set[int] = set()
    todo = deque([("", root)])
    while todo:
        path, thing = todo.popleft()
        if isinstance(thing, str):
            if thing in rids:
                yield path
            continue
        if thing is None or isinstance(thing, int | float | bytes) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            todo.extend((f"{path}[{key!r}]", value) for key, value in thing.items())
            todo.extend((f"{path}.keys", key) for key in thing)
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            todo.extend((f"{path}[…]", value) for value in thing)
        elif type(thing).__module__.partition(".")[0] in ("actors", "protocols"):
            fields = {*getattr(thing, "__dict__", ()), *(s for c in type(thing).__mro__ for s in _slots(c))}
            todo.extend((f"{path}.{f}", getattr(thing, f, None)) for f in sorted(fields) if f not in FORGETS)


def _slots(kind: type) -> tuple[str, ...]:
    slots = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
