"""``duoactor top`` without a terminal: rates, and what it draws of reports."""

import pytest
from rich.console import Console

from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.render import clean
from duoactor.top import RecentReports, draw
from protocols.messages import ActorStatus, RequestStatus, StatusReport, TargetStatus


def report(uptime_ms: float, tokens: int, made: int, requests: int = 1) -> StatusReport:
    return StatusReport(
        "r", "auto", uptime_ms, TargetStatus("toy", "cpu", "float32", 100, 10), ActorStatus("v"),
        tuple(RequestStatus(chr(97 + i), "auto", "decode", tokens) for i in range(requests)),
        counters={"generation_tokens": made},
    )  # fmt: skip


def test_rates_are_of_the_last_seconds_and_begin_anew_with_another_verifier():
    recent = RecentReports("here")
    for second in range(10):
        recent.answered(report(1000.0 * second, 10 * second, 30 * second), float(second))
    assert recent.rates() == (30.0, None, {"a": 10.0})
    recent.answered(report(5.0, 3, 3), 10.0)
    assert recent.rates() == (0.0, None, {})
    recent.failed("gone")
    assert recent.latest is None and recent.problem == "gone"


def test_a_name_that_would_move_the_cursor_does_not():
    assert clean("a\x1b[2Jb") == "a?[2Jb"


@pytest.mark.parametrize(("height", "shown"), [(60, 12), (15, 5)])
def test_requests_that_do_not_fit_are_counted(height: int, shown: int):
    recent, console = RecentReports("here"), Console(width=120, height=height)
    recent.answered(report(1.0, 1, 1, requests=12), 0.0)
    with console.capture() as capture:
        console.print(draw(recent, console))
    text = capture.get()
    assert sum("decode" in line for line in text.splitlines()) == shown
    assert ("7 more requests" in text) == (shown < 12)


def test_in_a_pipe_it_names_the_command_that_prints_once(capsys):
    assert main(["top"], Environment()) == 2
    assert "duoactor status" in capsys.readouterr().err
