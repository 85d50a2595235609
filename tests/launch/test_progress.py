"""What people see while actors load."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from duoactor.cli.environment import Environment
from duoactor.launch.child import ActorPlan
from duoactor.launch.progress import LaunchReport
from duoactor.launch.supervisor import Event, Supervisor
from protocols.errors import ConfigError
from protocols.messages import Role

TARGET = ActorPlan(Role.VERIFIER, "verifier", ())
DRAFT = ActorPlan(Role.DRAFTER, "drafter", ())


def test_a_terminal_shows_what_is_waited_for_and_for_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = [0.0]
    report = LaunchReport(clock=lambda: now[0])
    report(Event("starting", TARGET))
    report(Event("starting", DRAFT))
    assert "loading target, loading draft …" in capsys.readouterr().err
    now[0] = 3.2
    report(Event("waiting", TARGET))
    assert "loading target, loading draft (3 s) …" in capsys.readouterr().err
    report(Event("progress", TARGET, "model.safetensors: 12%"))
    assert capsys.readouterr().err.endswith("\x1b[K\x1b[2mmodel.safetensors: 12% (3 s) …\x1b[0m")
    report(Event("progress", TARGET, ""))
    assert capsys.readouterr().err.endswith("\x1b[2mloading target, loading draft (3 s) …\x1b[0m")
    report(Event("line", DRAFT, "ready: draft, 0.3 ms a step"))
    assert capsys.readouterr().err.endswith("\x1b[2mloading target (3 s) …\x1b[0m")


async def test_the_line_is_cleared_before_an_error_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    report = LaunchReport()

    class Broken(Supervisor):
        async def __aenter__(self):
            report(Event("starting", TARGET))
            raise ConfigError("there is no model x")

    monkeypatch.setattr("duoactor.launch.supervisor.Supervisor", Broken)
    deployment = SimpleNamespace(plans=(), address="ipc:///x")
    with pytest.raises(ConfigError):
        async with Environment(probe=lambda _: None).supervised(deployment, report):
            raise AssertionError("nothing was started")
    shown = capsys.readouterr().err
    assert "loading target" in shown and shown.endswith("\r\x1b[K")


def test_where_lines_are_not_shown_the_last_one_says_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    report = LaunchReport(lines=False)
    report(Event("starting", TARGET))
    report(Event("line", TARGET, "compiling the layers for this processor, the first time only"))
    assert "compiling the layers for this processor, the first time only …" in capsys.readouterr().err
    report(Event("line", TARGET, "ready at ipc:///x"))
    assert "compiling" not in capsys.readouterr().err


def test_what_tells_how_far_it_is_hides_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    report = LaunchReport(lines=False)
    report(Event("starting", TARGET))
    report(Event("starting", DRAFT))
    report(Event("line", DRAFT, "waiting for another process"))
    report(Event("progress", TARGET, "compiling, 12 functions done"))
    assert capsys.readouterr().err.endswith("\x1b[2mcompiling, 12 functions done …\x1b[0m")
    report(Event("progress", TARGET, " "))
    assert capsys.readouterr().err.endswith("\x1b[2mwaiting for another process …\x1b[0m")
    report(Event("progress", TARGET, "timing rounds"))
    report(Event("line", TARGET, "ready at ipc:///x"))
    assert capsys.readouterr().err.endswith("\x1b[2mwaiting for another process …\x1b[0m")


def test_a_line_that_is_longer_than_the_terminal_is_cut_so_that_it_can_be_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    report = LaunchReport()
    report(Event("starting", TARGET))
    report(Event("progress", TARGET, "x" * 200))
    assert capsys.readouterr().err.endswith("\r\x1b[K" + "x" * 79)


READY = "ready at ipc:///run/user/1000/duoactor/verifier.ipc: m, Q4_1 on cpu, " + "; ".join(["2.1 ms for a token"] * 9)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_line_is_folded_between_words_on_a_terminal_and_whole_in_a_pipe(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "dumb")
    LaunchReport()(Event("line", TARGET, READY))
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(line.strip() for line in lines) == f"verifier | {READY}"
    assert (max(map(len, lines)) <= 80) == terminal
    assert len(lines) == (4 if terminal else 1)


def test_a_pipe_gets_lines_only(capsys: pytest.CaptureFixture[str]):
    report = LaunchReport()
    report(Event("starting", TARGET))
    report(Event("progress", TARGET, " 12%"))
    report(Event("line", TARGET, "ready at ipc:///x"))
    report(Event("lost", DRAFT, "drafter: there is no model x"))
    report(Event("left", DRAFT))
    assert capsys.readouterr().err.splitlines() == [
        "verifier | ready at ipc:///x",
        "drafter: there is no model x; the others go on without it",
        "drafter has left",
    ]


def test_a_terminal_that_knows_no_escape_sequences_gets_lines_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    report = LaunchReport()
    report(Event("starting", TARGET))
    report(Event("line", TARGET, "ready at ipc:///x"))
    assert capsys.readouterr().err == "verifier | ready at ipc:///x\n"


def test_who_wants_no_colour_still_sees_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    LaunchReport()(Event("starting", TARGET))
    assert capsys.readouterr().err == "\r\x1b[Kloading target …"


@pytest.mark.parametrize("first", ["line", "lost"])
def test_what_two_actors_say_of_one_model_is_said_once(first: str, capsys: pytest.CaptureFixture[str]):
    sentence = "broken cannot draft: the draft model gives token 0 the probability nan"
    events = [
        Event("line", TARGET, f"no drafts between forwards: {sentence}"),
        Event("lost", DRAFT, f"drafter: {sentence}"),
    ]
    report = LaunchReport()
    for event in events if first == "line" else reversed(events):
        report(event)
    shown = capsys.readouterr().err
    assert shown.count(sentence) == 1
    assert ("drafter has left for that reason" in shown) == (first == "line")
    assert "the others go on without it" in shown


def test_what_one_actor_says_twice_is_shown_twice(capsys: pytest.CaptureFixture[str]):
    report = LaunchReport()
    for request in ("a", "b"):
        report(
            Event(
                "line", DRAFT, f"request {request} goes on without drafts: the draft model cannot hold a text so long"
            )
        )
    assert capsys.readouterr().err.count("goes on without drafts") == 2
