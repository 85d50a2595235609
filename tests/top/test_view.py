"""The picture as text: it fits any terminal, and says what matters first."""

from itertools import product

import pytest
from rich.cells import cell_len

from duoactor.monitor.picture import Actor, Picture, Stream, Strip
from duoactor.top.columns import Column, lane, table
from duoactor.top.dialog import Dialog
from duoactor.top.view import ASCII, LEAST_ROWS, draw


def picture(requests: int = 1, drafters: int = 1, **fields) -> Picture:
    actors = (
        Actor(role="verifier", actor_id="verifier", host="gpu-box", state="decoding", step_us=4900.0, busy=0.92),
        *(
            Actor(role="drafter", actor_id=f"d{i}", host="laptop", state="active", leases=1, step_us=330.0, busy=0.6,
                  acceptance=0.61)
            for i in range(drafters)
        ),
        Actor(role="controller", actor_id="controller", host="gpu-box"),
    )  # fmt: skip
    streams = tuple(
        Stream(rid=f"request-{i}", method="auto", state="decode", tokens=12, drafter="d0", tokens_per_second=210.4,
               acceptance=0.63, gamma=6.0, sequences=2.0)
        for i in range(requests)
    )  # fmt: skip
    strip = Strip(
        begin=0.0, end=1000.0, rounds=2, verify=((0.0, 400.0), (500.0, 1000.0)), wait=((400.0, 500.0),),
        draft={f"d{i}": ((100.0, 300.0),) for i in range(drafters)}, draft_us=200.0, overlap_us=150.0,
    )  # fmt: skip
    told = {
        "address": "ipc:///v", "model_id": "org/model", "device": "cuda", "dtype": "bfloat16", "method": "auto",
        "uptime_ms": 61_000.0, "kv_used": 100, "kv_slots": 8192, "tokens_per_second": 210.4, "speedup": 1.93,
        "actors": actors, "streams": streams, "strip": strip if requests else None,
    }  # fmt: skip
    return Picture(**{**told, **fields})


def lines(shown: Picture, width: int = 80, height: int = 24, dialog: Dialog | None = None, **options) -> list[str]:
    return [line.plain for line in draw(shown, dialog or Dialog(), width, height, **options)]


@pytest.mark.parametrize(("requests", "drafters"), list(product((0, 1, 50), (0, 2, 40))))
def test_it_fits_every_terminal(requests, drafters):
    shown = picture(requests, drafters)
    for width, height in ((80, 24), (200, 60), (50, 14), (34, 8), (20, 3), (5, 1), (1, 1)):
        found = lines(shown, width, height)
        assert len(found) == height
        assert all(cell_len(line) <= width for line in found)


def test_a_usual_terminal_shows_everything_of_one_stream():
    text = "\n".join(lines(picture(1, 2)))
    for wanted in (
        "org/model", "210.4 tokens/s", "1.93× the target alone", "gpu-box", "laptop", "92%", "4.90 ms", "0.33 ms",
        "request-0", "63%", "6.0", "2.0", "the last 2 rounds", "75% of drafting while the target verified", "q quit",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_the_lanes_are_of_one_scale_and_a_wait_is_no_work():
    [title] = [i for i, line in enumerate(lines(picture())) if line.startswith("the last")]
    verify, draft = lines(picture())[title + 1 : title + 3]
    assert verify.startswith("verify") and draft.startswith("d0")
    verify, draft = verify[13:], draft[13:]
    assert len(verify) == 67 and verify.count("·") in (6, 7)
    assert verify[30] == "·" and verify[10] == verify[60] == "█"
    assert draft[10] == "█" and draft.strip() == draft[6:21].strip()


def test_fifty_requests_are_scrolled():
    top, below = lines(picture(50)), lines(picture(50), scroll=30)
    assert any("request-0 " in line for line in top) and not any("request-0 " in line for line in below)
    assert any("request-30" in line for line in below)
    assert any(line.startswith("0 more above") for line in top) and any(line.startswith("30 more") for line in below)
    assert "request-49" in "\n".join(lines(picture(50), scroll=500))


def test_a_silent_verifier_is_said_first():
    found = lines(picture(silent_s=4.0, problem="it does not answer"))
    assert found[1] == "no answer for 4 s; waiting for the verifier to come back"
    before = lines(Picture(address="ipc:///v", silent_s=1.0, problem="nobody answers at ipc:///v"))
    assert before[0].endswith("ipc:///v") and before[1] == "waiting for a verifier: nobody answers at ipc:///v"


def test_a_small_window_keeps_the_requests_and_drops_the_lanes():
    found = "\n".join(lines(picture(5, 1), 60, 11))
    assert "the last" not in found
    assert sum("request-" in line for line in found.splitlines()) >= LEAST_ROWS - 2


def test_names_from_elsewhere_cannot_move_the_cursor():
    hostile = Actor(role="drafter", actor_id="\x1b[2Jevil\n", host="\x07", state="active")
    text = "".join(lines(picture(actors=(hostile,))))
    assert "\x1b" not in text and "\x07" not in text and "?[2Jevil?" in text


def test_a_terminal_without_unicode_gets_ascii():
    assert "".join(lines(picture(50, 2), glyphs=ASCII)).isascii()


def test_choosing_a_drafter_shows_drafters_with_numbers_and_marks_one():
    dialog = Dialog()
    for key in ("s", "down"):
        dialog.press(key, ["d0", "d1", "d2"])
    drawn = draw(picture(1, 3), dialog, 80, 24)
    assert [line.plain[:5] for line in drawn if str(line.style) == "reverse"] == ["2 d1 "]
    assert not any(line.plain.startswith(("verifier", "controller")) for line in drawn)
    assert drawn[-1].plain.startswith("Move from which drafter?")


def test_the_columns_that_matter_least_give_way():
    columns = (Column("name", ["abc"]), Column("rate", ["12"], True, rank=1), Column("note", ["x" * 30], rank=2))
    assert table(columns, 80) == ["name  rate  note", "abc     12  " + "x" * 23 + "…"]
    assert table(columns, 12) == ["name  rate", "abc     12"]
    assert table(columns, 3) == ["na…", "abc"]


def test_a_lane_shows_shares_of_time():
    assert lane([(0, 50), (75, 100)], 0, 100, 4, " ▁▂▃▄▅▆▇█") == "██ █"
    assert lane([(0, 25)], 0, 100, 2, " ▁▂▃▄▅▆▇█") == "▄ "
    assert lane([(0, 3)], 0, 100, 1, " ▁▂▃▄▅▆▇█") == "▁"
    assert lane([], 0, 100, 3, " ▁▂▃▄▅▆▇█") == "   "
