"""The supervisor with small Python programs in place of the actors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from duoactor.launch.child import GATEWAY, STOP_S, ActorPlan, Child
from duoactor.launch.supervisor import Event, LaunchError, Supervisor
from protocols.messages import ActorStatus, DrafterStatus, Role, StatusReport, TargetStatus

LIVES = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("on", flush=True)
signal.pause()
"""


def plan(role: str, program: str, name: str = "") -> ActorPlan:
    return ActorPlan(role, name or str(role), (sys.executable, "-S", "-c", textwrap.dedent(program)))


class World:
    """Stands for the verifier's status: whatever runs is listed."""

    def __init__(self, *plans: ActorPlan, needs_drafts: bool = False) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.asked = 0
        self.answers = True  # the verifier, while it runs
        self.welcomes = True  # drafters that run
        self.controller_pid = 0  # process that the verifier takes for the controller; 0: the one that runs
        self.supervisor = Supervisor(plans, self.probe, report=self.report, needs_drafts=needs_drafts)

    def report(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def probe(self) -> StatusReport | None:
        self.asked += 1
        pids = {plan.role: pid for plan, pid in self.supervisor.actors if pid}
        if Role.VERIFIER not in pids or not self.answers:
            return None
        drafters = tuple(
            DrafterStatus(plan.name, "m", "active", 0, 0.0, 0, 0, 0, pid=pid)
            for plan, pid in self.supervisor.actors
            if plan.role is Role.DRAFTER and pid and self.welcomes
        )
        control = self.controller_pid or pids.get(Role.CONTROLLER, 0)
        return StatusReport(
            "", "sps", 0.0, TargetStatus("m", "cpu", "float32", 0, 0), ActorStatus("v", pid=pids[Role.VERIFIER]),
            drafters=drafters, controller=ActorStatus("c", pid=control),
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


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def gone(pid: int) -> None:
    """Until it is dead; nobody may have asked for an orphan's exit code yet."""
    while alive(pid) and not zombie(pid):
        await asyncio.sleep(0.01)


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
    world.answers = False
    with pytest.raises(LaunchError, match=r"^verifier: there is no model x: give --target another$"):
        async with world.supervisor:
            pass
    started = [event.pid for event in world.events if event.kind == "started"]
    assert not any(alive(pid) for pid in started)
    assert not [event for event in world.events if event.kind == "restart"]


BROKEN = "print('duoactor: its weights are broken; use another draft model'); raise SystemExit(1)"


async def test_a_drafter_that_cannot_run_is_left_out_though_the_verifier_does_not_serve_yet():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, BROKEN), plan(Role.CONTROLLER, LIVES))
    world.answers = False
    entering = asyncio.create_task(world.supervisor.__aenter__())
    lost = await world.until("lost", "drafter")
    assert lost.text == "drafter: its weights are broken; use another draft model"
    assert not entering.done()
    world.answers = True
    await entering
    assert [actor.name for actor, _ in world.supervisor.actors] == ["verifier", "controller"]
    await world.supervisor.__aexit__()


@pytest.mark.parametrize("answers", [False, True])
async def test_where_drafts_are_what_is_asked_for_a_drafter_that_cannot_run_ends_the_start(answers: bool):
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, BROKEN), needs_drafts=True)
    world.answers = answers
    with pytest.raises(LaunchError, match=r"^drafter: its weights are broken; use another draft model$"):
        async with world.supervisor:
            pass


async def test_a_drafter_that_cannot_run_ends_no_verifier_that_serves(tmp_path: Path):
    ready = tmp_path / "verifier-is-ready"
    waits = f"""
        import pathlib, time
        while not pathlib.Path({str(ready)!r}).exists():
            time.sleep(0.01)
        print("duoactor: its weights are broken; use another draft model")
        raise SystemExit(1)
    """
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, waits), plan(Role.CONTROLLER, LIVES))
    world.welcomes = False
    entering = asyncio.create_task(world.supervisor.__aenter__())
    await world.until("ready", "verifier")
    ready.touch()
    lost = await world.until("lost", "drafter")
    assert lost.text == "drafter: its weights are broken; use another draft model"
    await entering
    assert [actor.name for actor, _ in world.supervisor.actors] == ["verifier", "controller"]
    await world.supervisor.__aexit__()


async def test_without_such_a_sentence_the_last_lines_are_shown():
    world = World(plan(Role.VERIFIER, "raise ValueError('boom')"))
    world.answers = False
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


async def test_a_dead_actor_is_started_again_though_what_it_started_holds_its_output_open():
    parent = """
        import subprocess, sys, time
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        time.sleep(600)
    """
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, parent))
    async with world.supervisor:
        grandchild = int((await world.until("line", "drafter")).text)
        os.kill(world.supervisor.actors[1][1], signal.SIGKILL)
        await world.until("started", "drafter", count=2)
        await gone(grandchild)
        last = int((await world.until("line", "drafter", count=2)).text)
    await gone(last)


async def test_a_sentence_of_an_actor_that_cannot_go_on_is_told_once():
    once = """
        import sys, time
        print("on", flush=True)
        sys.stdin.readline()
        print("duoactor: the verifier has another model", flush=True)
        sys.exit(1)
    """
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, once))
    async with world.supervisor:
        child = world.supervisor._actors[1].child
        child._process.stdin.write(b"\n")
        told = await world.until("restart", "drafter")
    assert told.text == "ended with exit code 1 (the verifier has another model); starting it again"
    assert sum("another model" in event.text for event in world.events) == 1


async def test_a_controllers_successor_is_ready_only_by_its_own_process():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.CONTROLLER, LIVES))
    async with world.supervisor:
        _, (_, first) = world.supervisor.actors
        world.controller_pid = first  # what the verifier remembers of the first
        os.kill(first, signal.SIGKILL)
        await world.until("started", "controller", count=2)
        asked = world.asked
        while world.asked < asked + 2:
            await asyncio.sleep(0.01)
        assert len([e for e in world.events if e.kind == "ready" and e.actor.name == "controller"]) == 1


async def test_the_verifier_is_stopped_before_the_others():
    notes = """
        import signal, sys, time
        def end(*_):
            print("ended", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("on", flush=True)
        signal.pause()
    """
    world = World(plan(Role.DRAFTER, notes), plan(Role.VERIFIER, notes), plan(Role.CONTROLLER, notes))
    async with world.supervisor:
        for name in ("verifier", "drafter", "controller"):
            await world.until("line", name)
    ended = [event.actor.name for event in world.events if event.text == "ended"]
    assert ended[0] == "verifier" and len(ended) == 3


async def test_a_second_cancel_kills_at_once():
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nsignal.pause()"
    world = World(plan(Role.VERIFIER, deaf))

    async def stay() -> None:
        async with world.supervisor:
            await world.until("line", "verifier")
            entered.set()
            await asyncio.sleep(3600)

    entered = asyncio.Event()
    up = asyncio.create_task(stay())
    await entered.wait()
    pid = world.supervisor.actors[0][1]
    up.cancel()
    while not world.supervisor._stopping:
        await asyncio.sleep(0)
    up.cancel()
    began = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await up
    assert not alive(pid)
    assert asyncio.get_running_loop().time() - began < STOP_S


async def test_a_fault_of_the_launcher_itself_ends_everything_and_is_raised():
    world = World(plan(Role.VERIFIER, LIVES))

    async def probe() -> StatusReport | None:
        raise ZeroDivisionError("oops")

    world.supervisor._probe = probe
    with pytest.raises(ZeroDivisionError):
        async with world.supervisor:
            pass
    started = [event.pid for event in world.events if event.kind == "started"]
    assert not any(alive(pid) for pid in started)


def test_a_child_ends_when_its_supervisor_was_killed():
    program = "from duoactor.launch.child import die_with_parent\ndie_with_parent()\n" + LIVES
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    assert child.stdout.readline() == b"on\n"
    assert child.poll() is None
    child.stdin.close()  # what the system does for a killed supervisor
    assert child.wait(timeout=30) == 0
    child.stdout.close()


async def test_a_dead_child_keeps_its_process_id_until_its_group_is_killed(monkeypatch: pytest.MonkeyPatch):
    killed: list[bool] = []
    killpg = os.killpg

    def kill_group(group: int, number: int) -> None:
        killed.append(Path(f"/proc/{group}").exists())  # reaped, the id could be another's by now
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", kill_group)
    child = await Child.start(plan(Role.VERIFIER, "pass"), lambda text: None, lambda text: None)
    assert await child.wait() == 0
    child.kill()
    child.terminate()
    assert killed == [True]


async def test_the_gateway_and_the_verifier_are_stopped_together_and_the_others_after_them():
    world = World(plan(Role.VERIFIER, LIVES), plan(Role.DRAFTER, LIVES), plan(Role.CONTROLLER, LIVES))
    gateway = Supervisor([plan(GATEWAY, LIVES)], world.probe, report=world.report)
    world.supervisor._actors += gateway._actors
    for actor in gateway._actors:
        actor.left = True  # nobody asks this one over HTTP whether it is ready
    async with world.supervisor:
        await world.until("started", "gateway")
    order = [f"{event.kind} {event.actor.name}" for event in world.events if event.kind in ("stopping", "ended")]
    assert order[:2] == ["stopping gateway", "stopping verifier"]
    assert set(order[2:4]) == {"ended gateway", "ended verifier"}
    assert set(order[4:6]) == {"stopping drafter", "stopping controller"}
