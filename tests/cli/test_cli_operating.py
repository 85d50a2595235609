"""What an operator asks for: status, drafters, swaps, drains and keys, of a client that answers from memory."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import msgspec
import pytest

from duoactor.cli import main
from duoactor.status import print_drafters, print_status
from protocols.messages import ActorStatus, Budget, Kind, StatusReport
from tests.cli.fake_client import REPORT, FakeClient, run


def test_status_shows_drafters_and_requests(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "status") == 0
    out = capsys.readouterr().out
    for word in ("org/model", "bfloat16", "1 min 1 s", "100 of 8,192", "d1", "60 (60%)", "0.25 ms", "q1", "decode"):
        assert word in out


def test_no_line_of_a_table_ends_in_spaces(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    for command in ("status", "drafters"):
        assert run(client, command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines and [line for line in lines if line != line.rstrip()] == []


def test_status_says_where_windows_hold_one_path_only(capsys: pytest.CaptureFixture[str]):
    for branches in (True, False):
        print_status(told(branches=branches))
        assert ("likeliest path only" in capsys.readouterr().out) != branches


def told(**target: object) -> StatusReport:
    return msgspec.structs.replace(REPORT, target=msgspec.structs.replace(REPORT.target, **target))


def test_status_says_how_cores_are_used_and_the_rate_without_drafts(capsys: pytest.CaptureFixture[str]):
    print_status(told(threads=2, cpus="0,1", spare_cpus="3", tokens_per_second=120.0))
    lines = capsys.readouterr().out.splitlines()
    (cores,) = [line for line in lines if line.startswith("cores ")]
    (speed,) = [line for line in lines if line.startswith("one stream ")]
    for words in ("2 threads", "CPUs 0,1", "CPU 3 too while drafters rest"):
        assert words in cores
    assert "120 tokens/s without drafts" in speed
    print_status(told(tokens_per_second=120.0))
    assert "cores" not in capsys.readouterr().out, "the target is elsewhere"


def test_status_in_json_names_every_field(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "status", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == set(StatusReport.__struct_fields__)
    assert document["drafters"][0]["actor_id"] == "d1"


def test_a_terminal_of_40_columns_shows_the_names_and_states_of_drafters(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slow = msgspec.structs.replace(REPORT.drafters[0], actor_id="drafter", state="paused", speedup=0.8)
    monkeypatch.setattr(client, "status", lambda: msgspec.structs.replace(REPORT, drafters=(slow,)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("duoactor.render.width", lambda terminal: 40)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    assert run(client, "drafters") == 0
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert "…" not in "".join(lines) and lines[1].split()[:2] == ["drafter", "paused"]
    assert all(len(line) <= 40 or "`" in line for line in lines), lines


def test_a_narrow_terminal_shows_fewer_columns_of_drafters_and_cuts_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    far = msgspec.structs.replace(REPORT.drafters[0], actor_id="laptop-in-the-kitchen", speedup=1.3)
    shown = {}
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        print_drafters([far], "auto")
        shown[columns] = capsys.readouterr().out
    assert "…" not in shown["80"] and "pid" not in shown["80"] and "pid" in shown["200"]
    for word in ("laptop-in-the-kitchen", "state", "gains", "accepted"):
        assert word in shown["80"]


def test_what_other_hosts_tell_of_themselves_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]):
    evil = "\x1b[2Jd"
    drafter = msgspec.structs.replace(REPORT.drafters[0], actor_id=evil, host=evil, trouble=f"cannot load {evil}")
    budget, actor = Budget(1, 1000, Kind("sps", evil)), ActorStatus(evil)
    print_status(
        msgspec.structs.replace(REPORT, drafters=(drafter,), budgets=(budget,), controller=actor, learner=actor)
    )
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "cannot load ?[2Jd" in shown


@pytest.mark.parametrize(("method", "left"), [("auto", "copied from earlier text"), ("tree", "decodes alone")])
def test_without_drafters_it_says_where_drafts_come_from(method: str, left: str, capsys: pytest.CaptureFixture[str]):
    print_drafters([], method)
    assert left in capsys.readouterr().out


def test_a_drafter_that_is_right_and_paused_is_said_to_take_more_time_than_it_saves(capsys: pytest.CaptureFixture[str]):
    change = partial(msgspec.structs.replace, REPORT.drafters[0], drafted=100, accepted=99, speedup=0.79)
    print_drafters([change(actor_id="slow", state="paused"), change(actor_id="used", state="active")], "auto")
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "paused:" in line]
    for words in ("slow is paused", "99% of them right", "more time than they saved (0.79x", "a smaller draft model"):
        assert words in said


def test_drafters_lists_them(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "drafters") == 0
    assert "org/draft" in capsys.readouterr().out
    assert run(client, "drafters", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["pid"] == 77


def test_swap_and_drain_are_one_line_each(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "swap", "a", "b") == 0
    assert run(client, "drain", "a") == 0
    assert capsys.readouterr().out.splitlines() == ["a hands over to b", "a leaves"]
    assert client.asked == [{"swap": ("a", "b")}, {"drain": "a"}]


def test_an_undo_names_the_version_that_is_to_be_left(client: FakeClient, capsys: pytest.CaptureFixture[str]):
    assert run(client, "learner", "--undo", "3") == 0
    assert capsys.readouterr().out == "the learner is asked\n" and client.asked == [{"undo": 3}]
    for nothing in (["--undo"], ["--undo", "0"]):
        assert run(client, "learner", *nothing) == 2
    assert len(client.asked) == 1


def test_keys_writes_a_pair_and_never_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["keys", "laptop", "--directory", str(tmp_path), "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path(document["secret"]).stat().st_mode & 0o077 == 0
    assert Path(document["public"]).is_file()
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
