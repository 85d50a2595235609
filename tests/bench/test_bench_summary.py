import msgspec
import pytest
from benchkit import SETTINGS, cost, results, run

from duoactor.bench.compare import compare, sentences, table
from duoactor.bench.report import all_tables, markdown
from duoactor.bench.results import read_results, write_document
from duoactor.bench.summary import AVERAGE, summarize, work_of
from protocols.errors import ConfigError


def by_name(found):
    return {line.name: line for line in summarize(found)}


def replaced(found, change):
    found.runs = tuple(change(one) for one in found.runs)
    return found


def test_the_decode_rate_leaves_the_first_token_and_its_time_out():
    lines = by_name(results())
    assert lines["vanilla"].decode["qa"].tokens_per_second == pytest.approx(100.0)
    assert lines["sps"].decode[AVERAGE].speedup == pytest.approx(1.5)
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
    assert line.decode["qa"].speedup == pytest.approx(1.5)
    assert line.failed == 1


def test_a_row_without_figures_stays_and_says_why():
    found = by_name(results())["rest"]
    assert found.missing == "no datastore" and not found.cells
    first = all_tables(results())[0]
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
    assert any(row[0] == "SpS (1 of 8 texts DIFFER)" for row in all_tables(found)[0].rows)


def test_with_noise_transformers_is_not_compared_but_ours_are():
    found = results(settings=msgspec.structs.replace(SETTINGS, temperature=0.7))
    lines = by_name(found)
    assert lines["transformers"].compared == 0
    assert lines["sps"].compared == 8


def test_work_adds_up_over_answers():
    work = work_of([run("sps", cost=cost()), run("sps", cost=cost(drafted=0, accepted=0, gamma=0.0, heard=0))])
    assert work.acceptance_rate == 0.5 and work.mean_acceptance_length == 2.0
    assert (work.drafted, work.accepted, work.round_ms) == (40, 20, 10.0)
    assert (work.verifier_busy, work.drafter_busy, work.waiting) == pytest.approx((0.8, 0.5, 0.1))
    assert (work.wait_ms, work.overhead_ms, work.gamma) == pytest.approx((1.0, 0.5, 2.0))
    assert (work.verifying_drafts, work.drafting, work.overlap) == pytest.approx((1.6, 1.0, 0.8))
    assert work.sequences == pytest.approx((6 + 4 + 6) / 10)
    assert work_of([run("transformers")]) is None


def test_without_telemetry_nothing_is_said_of_the_drafter():
    work = work_of([run("sps", cost=cost(heard=0, watched=0, drafting=0, draft_ms=0.0, overlap_ms=0.0))])
    assert (work.verifying_drafts, work.drafting, work.drafter_busy, work.overlap) == (None,) * 4


def test_a_method_whose_drafter_rested_is_not_called_by_its_name_and_wins_nothing():
    def rests(one):
        resting = one.method == "duodecoding"
        return msgspec.structs.replace(one, cost=cost(drafting=2)) if resting else one

    found = replaced(results(), rests)
    line = by_name(found)["duodecoding"]
    assert line.rested and not by_name(found)["sps"].rested
    first = all_tables(found)[0]
    named = {row[0]: r for r, row in enumerate(first.rows)}
    rested = named["not DuoDecoding: rested in 78% of rounds"]
    assert "DuoDecoding" not in named
    assert not any(r == rested for r, _ in first.bold)
    text = markdown(found, ())
    assert "Fastest on average: SpS" in text
    assert "**not DuoDecoding: rested in 78% of rounds**: its figures are not the method's." in text


def test_vanilla_and_retrieval_may_rest_and_auto_too():
    def rests(one):
        return msgspec.structs.replace(one, cost=cost(drafting=0), method="auto" if one.method == "sps" else one.method)

    found = replaced(results(methods=("vanilla", "auto", "duodecoding")), rests)
    lines = by_name(found)
    assert not lines["vanilla"].rested and not lines["auto"].rested and lines["duodecoding"].rested


def test_quartiles_of_the_prompts_are_of_whole_conversations():
    runs = [run("vanilla", f"qa-{n}", ms=100.0, ttft_ms=0.0, total_ms=100.0) for n in range(5)]
    runs += [run("sps", f"qa-{n}", ttft_ms=0.0, total_ms=100.0 / (n + 1)) for n in range(5)]
    assert by_name(results(runs=tuple(runs)))["sps"].prompts == pytest.approx((2.0, 4.0))


def test_the_best_of_a_task_is_bold_in_markdown():
    first = all_tables(results())[0]
    row = next(line for line in first.markdown().splitlines() if line.startswith("| DuoDecoding |"))
    assert row.count("**") == 6  # two tasks and the average


def test_table_three_names_the_chosen_gamma_and_table_four_counts_rounds():
    found = results(sweep_gamma=6)
    sweep = [run(f"duodecoding@{g}", ms=50.0 + abs(g - 7), cost=cost()) for g in (5, 6, 7)]
    found.runs = (*found.runs, *sweep)
    by_title = {one.title.partition(":")[0]: one for one in all_tables(found)}
    three, four = by_title["Table 3"], by_title["Table 4"]
    assert [row[0] for row in three.rows] == ["DuoDecoding, γ = 5", "DuoDecoding, γ = 6 (chosen)", "DuoDecoding, γ = 7"]
    assert three.bold == {(2, 1), (2, 2)}
    assert [row[2] for row in three.rows] == ["0.984", "1.000", "1.017"]  # 61 ms of the chosen one
    assert four.columns == ("chosen", "needed 1", "needed 2", "more")
    assert four.rows[0] == ("1", "40 (50.0%)", "0 (0.0%)", "24 (30.0%)")


def test_a_document_comes_back_as_it_was(tmp_path):
    found = results()
    write_document(tmp_path / "results.json", found)
    assert read_results(tmp_path / "results.json") == read_results(tmp_path) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "is not a results.json"),
        ("[1]", "is not a results.json"),
        ('{"schema": 99}', "has schema 99, not 2"),
        ('{"schema": 2}', "is not a results.json of `duoactor bench`: Object missing required field"),
    ],
)
def test_a_file_that_is_no_result_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_results(path)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_results(tmp_path / "b.json")


def test_a_change_beyond_the_spread_is_told_from_noise():
    def slower(one):
        ms = one.total_ms * (2.0 if one.method == "sps" else 1.0 + 0.01 * one.repeat * (one.method == "duodecoding"))
        return run(one.method, one.prompt, task=one.task, repeat=one.repeat, ttft_ms=1.0, total_ms=ms, digest="same")

    before, after = results(), replaced(results(), slower)
    found = compare(before, after)
    changes = {(c.method, c.task): c for c in found.changes}
    assert changes["SpS", AVERAGE].ratio == pytest.approx(0.5)
    assert changes["SpS", AVERAGE].beyond is True
    assert changes["DuoDecoding", AVERAGE].beyond is False
    assert {row[-1] for row in table(found).rows} == {"yes", "no"}


def test_what_else_changed_is_said():
    before = results()
    after = results(
        settings=msgspec.structs.replace(SETTINGS, max_tokens=16),
        versions={"duoactor": "1"},
        repeats=1,
        methods=("sps",),
    )
    found = compare(before, after)
    said = sentences(found)
    assert "max_tokens was 8, is 16" in said and "duoactor was 0, is 1" in said
    assert "DuoDecoding has figures only in the first" in said
    assert all(change.beyond is None for change in found.changes)
