"""The supervisor with small Python programs in place of the actors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from duoactor.launch.supervisor import ActorPlan, Event, LaunchError, Supervisor
from protocols.messages import DrafterStatus, Role, StatusReport

LIVES = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("on", flush=True)
signal.pause()
"""


def plan(role: Role, program: str, name: str = "") -> ActorPlan:
    return ActorPlan(role, name or str(role), (sys.executable, "-S", "-c", textwrap.dedent(program)))


class World:
    """Stands for the verifier's status: whatever runs is listed."""

    def __init__(self, *plans: ActorPlan) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.supervisor = Supervisor(plans, self.probe, report=self.report)

    def report(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def probe(self) -> StatusReport | None:
        pids = {plan.role: pid for plan, pid in self.supervisor.actors if pid}
        if Role.VERIFIER not in pids:
            return None
        drafters = tuple(
            DrafterStatus(plan.name, "m", "active", 0, 0.0, 0, 0, 0, 0.0, pid=pid)
            for plan, pid in self.supervisor.actors
            if plan.role is Role.DRAFTER and pid
        )
        return StatusReport(
            "", "m", "cpu", "float32", "sps", 0.0, 0, 0,
            drafters=drafters, pid=pids[Role.VERIFIER], controller="c" if Role.CONTROLLER in pids else "",
        )  # fmt: skip

    async def until(self, kind: str, name: str, count: int = 1) -> Event:
        while True:
            found = [event for event in self.events if event.kind == kind and event.actor.name == name]
            if len(found) >= count:
                return found[count - 1]
            self.changed.clear()
            await self.changed.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_entering_waits_for_every_actor_and_leaving_ends_them_all():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES), plan(Role.CONTROLLER, LIVES))
    async with world.supervisor:
        pids = [pid for _, pid in world.supervisor.actors]
        assert len(set(pids)) == 3 and all(alive(pid) for pid in pids)
        assert {event.actor.name for event in world.events if event.kind == "ready"} == {
            "verifier", "drafter", "controller",
        }  # fmt: skip
    assert not any(alive(pid) for pid in pids)


async def test_a_killed_drafter_is_started_again_and_the_verifier_is_left_alone():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES))
    async with world.supervisor:
        (_, verifier), (_, drafter) = world.supervisor.actors
        os.kill(drafter, signal.SIGKILL)
        again = await world.until("started", "drafter", count=2)
        await world.until("ready", "drafter", count=2)
        assert again.pid != drafter
        assert world.supervisor.actors[0][1] == verifier
        assert "SIGKILL" in (await world.until("restart", "drafter")).text


async def test_an_actor_that_refuses_to_start_is_quoted_in_one_sentence():
    says = "import sys; print('noise'); print('duoactor: there is no model x: give --target another'); sys.exit(1)"
    world = World(plan(Role.VERIFIER, says), plan(Role.DRAFTER, LIVES))
    with pytest.raises(LaunchError, match=r"^verifier: there is no model x: give --target another$"):
        async with world.supervisor:
            pass
    started = [event.pid for event in world.events if event.kind == "started"]
    assert not any(alive(pid) for pid in started)
    assert not [event for event in world.events if event.kind == "restart"]


async def test_without_such_a_sentence_the_last_lines_are_shown():
    world = World(plan(Role.VERIFIER, "raise ValueError('boom')"))
    with pytest.raises(LaunchError, match=r"ended with exit code 1; its last lines:(?s:.*)ValueError: boom"):
        async with world.supervisor:
            pass


async def test_a_command_that_does_not_exist_is_an_error_and_not_a_loop():
    world = World(ActorPlan(Role.VERIFIER, "verifier", ("/nonexistent/python",)))
    with pytest.raises(LaunchError, match="verifier cannot be started"):
        async with world.supervisor:
            pass


async def test_a_drafter_that_leaves_in_good_order_is_not_started_again():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES))
    async with world.supervisor:
        await world.until("line", "drafter")
        os.kill(world.supervisor.actors[1][1], signal.SIGTERM)
        await world.until("left", "drafter")
        assert [plan.name for plan, _ in world.supervisor.actors] == ["verifier"]


async def test_the_supervisor_ends_when_the_verifier_leaves_in_good_order():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES))
    async with world.supervisor:
        pids = [pid for _, pid in world.supervisor.actors]
        await world.until("line", "verifier")
        os.kill(pids[0], signal.SIGTERM)
        await world.supervisor.wait()
    assert not any(alive(pid) for pid in pids)


async def test_output_of_children_arrives_as_lines_even_very_long_ones():
    world = World(plan(Role.VERIFIER, "print('x' * 300_000)" + LIVES))
    async with world.supervisor:
        assert len((await world.until("line", "verifier")).text) == 300_000
        assert (await world.until("line", "verifier", count=2)).text == "on"


async def test_an_actor_deaf_to_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("duoactor.launch.supervisor.STOP_S", 0.1)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nsignal.pause()"
    world = World(plan(Role.VERIFIER, deaf))
    async with world.supervisor:
        pid = world.supervisor.actors[0][1]
        await world.until("line", "verifier")
    assert not alive(pid)


async def test_an_actor_between_two_lives_is_not_born_while_stopping():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES))
    async with world.supervisor:
        os.kill(world.supervisor.actors[1][1], signal.SIGKILL)
        await world.until("restart", "drafter")
    assert len([event for event in world.events if event.kind == "started"]) == 2


def test_a_child_ends_when_its_supervisor_was_killed():
    program = "from duoactor.launch.supervisor import die_with_parent\ndie_with_parent()\n" + LIVES
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    assert child.stdout.readline() == b"on\n"
    assert child.poll() is None
    child.stdin.close()  # what the system does for a killed supervisor
    assert child.wait(timeout=30) == 0
    child.stdout.close()
