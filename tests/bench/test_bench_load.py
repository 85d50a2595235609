"""Methods under load: which requests come when, what their answers add up to, and what the report says."""

from __future__ import annotations

import asyncio

import pytest
from benchkit import SETTINGS

from duoactor.bench.load import report
from duoactor.bench.load.arrivals import (
    ARRIVALS,
    BURSTS,
    CLOSED,
    POISSON,
    choose_arrivals,
    choose_streams,
    rate_of,
    requests,
    starts,
)
from duoactor.bench.load.cells import LONG, Cell, LoadResults, Told
from duoactor.bench.load.running import Loads, by_themselves, closed
from duoactor.bench.load.summary import busy_ms, shares_of, summarize_load, throughput
from duoactor.bench.methods import BY_NAME
from duoactor.bench.suites import Prompt
from duoactor.bench.summary import percentiles
from protocols.errors import ConfigError

PROMPTS = [Prompt(f"qa-{n}", "qa", (f"q{n}",)) for n in range(3)]


def told(prompt: str, sent: float, first: float, step: float, chunks: int, tokens: int = 1, **more) -> Told:
    times = tuple(first + step * n for n in range(chunks))
    values = {"digest": prompt, "rounds": chunks - 1, "forward_ms": 10.0 * (chunks - 1), "turns": times}
    values |= {"streams": (2,) * (chunks - 1), "rows": (2,) * (chunks - 1)} | more
    return Told(prompt=prompt, sent=sent, times=times, tokens=(tokens,) * chunks, **values)


def cell(method: str = "vanilla", answers: tuple[Told, ...] = (), **more) -> Cell:
    values = {"arrivals": CLOSED, "streams": 2, "repeat": 0} | more
    return Cell(method=method, answers=answers, **values)


def results(*cells: Cell) -> LoadResults:
    return LoadResults(settings=SETTINGS, methods=("vanilla", "auto"), cells=cells, machine={"cpu": "made up"})


PLAIN = cell("vanilla", (told("qa-0", 0, 10, 10, 50), told("qa-1", 0, 10, 10, 50)))
FAST = cell("auto", (told("qa-0", 0, 10, 10, 50, 2, accepted=49, drafted=98), told("qa-1", 0, 10, 10, 50, 2)))


def test_every_prompt_is_asked_and_every_stream_has_enough_to_do():
    few, many = requests(PROMPTS, 1), requests(PROMPTS, 16)
    assert few == ["qa-0", "qa-1", "qa-2"]
    assert len(many) == 48 and many.count(LONG) == 2 and set(many) == {"qa-0", "qa-1", "qa-2", LONG}


def test_requests_come_at_the_asked_rate_and_at_the_same_times_for_every_method():
    poisson = starts(POISSON, 2000, 4, 5.0, seed=1)
    assert poisson == sorted(poisson) == starts(POISSON, 2000, 4, 5.0, seed=1)
    assert 2000 / poisson[-1] == pytest.approx(5.0, rel=0.1)
    assert starts(BURSTS, 8, 4, 2.0, seed=0) == [0, 0, 0, 0, 2, 2, 2, 2]


async def test_in_the_closed_loop_a_stream_asks_again_when_it_was_answered():
    running, most, asked = 0, 0, []

    async def ask(prompt: str) -> Told:
        nonlocal running, most
        running += 1
        most = max(most, running)
        asked.append(prompt)
        await asyncio.sleep(0)
        running -= 1
        return Told(prompt=prompt, sent=0.0)

    answers = await closed([str(n) for n in range(10)], 3, ask)
    assert most == 3 and len(answers) == 10 and asked == [str(n) for n in range(10)]


async def test_requests_that_come_by_themselves_wait_for_no_other():
    first = asyncio.Event()

    async def ask(prompt: str) -> Told:
        if prompt == "a":
            await first.wait()
        else:
            first.set()
        return Told(prompt=prompt, sent=0.0)

    assert [one.prompt for one in await by_themselves(["a", "b"], [0.0, 0.0], ask)] == ["a", "b"]


def test_methods_take_turns_at_every_load():
    rows = [BY_NAME["vanilla"], BY_NAME["auto"]]
    order = [(streams, repeat, row.name) for _, streams, repeat, row in Loads([CLOSED], [1, 4], rows, 2)]
    assert order[:4] == [(1, 0, "vanilla"), (1, 0, "auto"), (1, 1, "auto"), (1, 1, "vanilla")]
    assert len(set(order)) == len(order) == Loads([CLOSED], [1, 4], rows, 2).units == 8


def test_the_rate_is_that_of_the_time_in_which_every_stream_was_at_work():
    # the second stream is done at 200 ms and finds nothing left; what the first makes alone does not count
    one = cell(answers=(told("qa-0", 0, 10, 10, 100), told("qa-1", 0, 10, 10, 20)))
    assert busy_ms(one) == 200
    assert throughput(one) == pytest.approx(1000 * 40 / 200)
    assert rate_of([one], "vanilla", 2) == pytest.approx(1000 * 1 / 200)
    assert rate_of([one], "vanilla", 4) == 0
    assert busy_ms(cell(answers=one.answers, arrivals=POISSON, rate=3.0)) == 1000


def test_speed_latency_and_drafts_of_a_load_are_on_a_line_per_method():
    plain, fast = summarize_load(results(PLAIN, FAST))
    assert (plain.speedup, fast.speedup) == (1.0, 2.0)
    assert fast.first_ms == (10, 10, 10) and fast.gap_ms == (10, 10, 10)
    assert (fast.acceptance, fast.tokens_per_round) == (0.5, 1.5)
    assert fast.compared == 2 and fast.different == 0


def test_a_stream_that_is_served_half_as_often_has_half_of_the_share_of_turns():
    tokens, turns = shares_of(cell(answers=(told("a", 0, 0, 10, 101), told("b", 0, 0, 30, 34))))
    assert min(turns) == pytest.approx(0.5, abs=0.02) and max(turns) == pytest.approx(1.5, abs=0.02)
    assert min(tokens) == pytest.approx(min(turns))


def test_a_stream_that_ran_alone_for_a_while_had_its_share():
    _, turns = shares_of(cell(answers=(told("a", 0, 0, 10, 101), told("b", 0, 500, 10, 51))))
    assert turns == pytest.approx([1, 1], abs=0.02)


def test_a_reader_that_was_held_up_takes_no_turns_from_its_stream():
    """Seen: 32 streams' client stood still for 0.1 s, and an answer that had ended before had 0.39 of its share."""
    turns = tuple(10.0 * n for n in range(11))
    late = Told(prompt="a", sent=0, times=(0.0, 300.0), tokens=(1, 10), turns=turns, rounds=10, forward_ms=100.0)
    _, shares = shares_of(cell(answers=(late, told("b", 0, 0, 10, 101))))
    assert shares == pytest.approx([1, 1], abs=0.02)


def test_of_an_answer_that_was_read_at_once_no_share_of_tokens_is_told():
    at_once = Told(prompt="a", sent=0, times=(50.0, 50.0), tokens=(1, 10), turns=tuple(map(float, range(11))))
    tokens, turns = shares_of(cell(answers=(at_once,)))
    assert tokens == [] and turns == [1]


def test_a_pause_while_somebodys_long_prompt_is_read_is_told_in_rounds_of_all_that_were_there():
    together = told("qa-1", 300, 300, 10, 26)  # and another: two streams
    alone = told("qa-2", 700, 700, 4, 26, streams=(1,) * 25, rows=(1,) * 25)
    times, rows = (0.0, 4.0, 8.0, 58.0, 62.0), (1, 1, 40, 1)
    paused = Told(prompt="qa-0", sent=0, times=(0.0, 62.0), tokens=(1, 4), turns=times, streams=(1,) * 4, rows=rows)
    long = told(LONG, 6, 60, 10, 2, streams=(2,), rows=(2,))
    (line,) = summarize_load(results(cell(answers=(together, alone, paused, long))))
    assert line.stall[-1] == pytest.approx(5.0)  # 50 ms; a round of two streams takes 10, one of a single stream 4


def test_percentiles_are_linear_between_ranks():
    assert percentiles([4, 1, 3, 2], (0, 50, 100)) == (1, 2.5, 4)
    assert percentiles([], (50,)) == () and percentiles([7], (50, 99)) == (7, 7)


def test_the_report_says_who_loses_(tmp_path):
    slow = cell("auto", (told("qa-0", 0, 10, 20, 50), told("qa-1", 0, 10, 20, 50, digest="other")))
    report.write_loads(results(PLAIN, slow), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "auto (ours) is slower than vanilla with 2 streams (0.51)." in text
    assert "1 of 4 texts differ" in text


def test_every_kind_of_arrivals_has_a_table_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    cells = [cell(one.method, one.answers, arrivals=kind) for kind in ARRIVALS for one in (PLAIN, FAST)]
    drawn = report.write_loads(results(*cells), tmp_path)
    assert [figure.file for figure in drawn] == [f"load_{kind}.png" for kind in ARRIVALS]
    assert all((tmp_path / figure.file).stat().st_size > 10_000 for figure in drawn)
    assert (tmp_path / "report.md").read_text().count("| vanilla |") == 3


def test_numbers_of_streams_and_arrivals_are_read_from_lists():
    assert choose_streams("16, 1,4,4") == [1, 4, 16]
    assert choose_arrivals("bursts") == [CLOSED, BURSTS]
    with pytest.raises(ConfigError, match="--streams takes numbers from 1 to 1024"):
        choose_streams("many")
    with pytest.raises(ConfigError, match="arrivals 'daily' are not known"):
        choose_arrivals("daily")
