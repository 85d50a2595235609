"""What a start tells the supervisor that it does."""

from __future__ import annotations

import pytest

from actors.doing import doing
from duoactor.launch.child import OutputLines


def test_a_supervisor_is_told_what_is_done_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
):
    monkeypatch.setenv("TQDM_POSITION", "-1")
    lines: list[str] = []
    progress: list[str] = []
    output = OutputLines(lines.append, progress.append)
    with doing("timing rounds") as tell:
        output.feed(capfdbinary.readouterr().err)
        tell(", 3 of 4")
        output.feed(capfdbinary.readouterr().err)
    output.feed(capfdbinary.readouterr().err + b"ready\n")
    assert progress == ["timing rounds", "timing rounds, 3 of 4", " "] and lines == ["ready"]


def test_nobody_else_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.delenv("TQDM_POSITION", raising=False)
    with doing("timing rounds") as tell:
        tell(", 3 of 4")
    assert capfd.readouterr() == ("", "")
