import msgspec
import pytest

from duoactor.bench.report import speeds
from duoactor.bench.results import Results, write_document
from duoactor.bench.summary import AVERAGE, summarize, work_of
from tests.bench.benchkit import SETTINGS, results, run, stats


def by_name(found):
    return {line.name: line for line in summarize(found)}


def test_the_decode_rate_leaves_the_first_token_and_its_time_out():
    lines = by_name(results())
    assert lines["sps"].decode_speedup == pytest.approx(1.5)
    assert lines["vanilla"].cells["qa"].tokens_per_second == pytest.approx(1000 * 11 / 110)
    assert lines["sps"].cells[AVERAGE].speedup == pytest.approx(110 / (10 + 100 / 1.5))


def test_the_speed_up_is_the_median_of_the_repeats_with_their_lowest_and_highest():
    runs = [run("vanilla", repeat=r, ms=100.0, ttft_ms=0.0, total_ms=100.0) for r in range(3)]
    runs += [run("sps", repeat=r, ttft_ms=0.0, total_ms=ms) for r, ms in enumerate((50.0, 80.0, 25.0))]
    cell = by_name(results(runs=tuple(runs)))["sps"].cells["qa"]
    assert (cell.low, cell.speedup, cell.high) == pytest.approx((1.25, 2.0, 4.0))


def test_a_prompt_that_one_method_lacks_counts_for_neither():
    runs = [run("vanilla"), run("vanilla", "qa-2", ms=9999.0), run("sps"), run("sps", "qa-2", error="too long")]
    line = by_name(results(runs=tuple(runs)))["sps"]
    assert line.decode_speedup == pytest.approx(1.5)
    assert line.failed == 1


def test_a_row_without_figures_stays_and_says_why():
    found = by_name(results())["rest"]
    assert found.missing == "no datastore" and not found.cells
    first = speeds(results())
    assert next(row for row in first.rows if row[0] == "REST")[:2] == ("REST", "no datastore")


def test_a_differing_text_is_counted_once_per_conversation_and_flagged_in_the_table():
    found = results()
    found.runs = tuple(
        run(one.method, one.prompt, task=one.task, repeat=one.repeat, digest="other")
        if one.method == "sps" and one.prompt == "qa-1" and one.repeat == 1
        else one
        for one in found.runs
    )
    line = by_name(found)["sps"]
    assert (line.different, line.compared) == (1, 8)
    assert any(row[0] == "SpS (1 of 8 texts DIFFER)" for row in speeds(found).rows)


def test_with_noise_transformers_is_not_compared_but_ours_are():
    found = results(settings=msgspec.structs.replace(SETTINGS, temperature=0.7))
    lines = by_name(found)
    assert lines["transformers"].compared == 0
    assert lines["sps"].compared == 8


def test_work_adds_up_over_answers():
    work = work_of([stats(), stats(draft_tokens=0, accepted_tokens=0, gamma=0.0)])
    assert work.acceptance_rate == 0.5 and work.mean_acceptance_length == 2.0
    assert (work.round_ms, work.forward_ms, work.gamma) == pytest.approx((10.0, 8.0, 2.0))
    assert (work.wait_ms, work.overhead_ms) == pytest.approx((1.0, 0.5))
    assert work.sequences == pytest.approx((6 + 4 + 6) / 10)
    assert work_of([]) is None


def test_the_best_of_a_task_is_bold_in_markdown():
    first = speeds(results())
    row = next(line for line in first.markdown().splitlines() if line.startswith("| DuoDecoding |"))
    assert row.count("**") == 6  # two tasks and the average


def test_a_document_comes_back_as_it_was(tmp_path):
    found = results()
    write_document(tmp_path / "results.json", found)
    assert msgspec.json.decode((tmp_path / "results.json").read_bytes(), type=Results) == found
