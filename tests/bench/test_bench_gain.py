"""What the report says of where the gain of ``auto`` comes from."""

import msgspec
from benchkit import TASKS, cost, results, run

from duoactor.bench.gain import in_short, where_from
from duoactor.bench.report import markdown
from duoactor.bench.results import AcceptedBy, Cost, Run

TEXT, CODE = AcceptedBy(draft=30, both=10, text=60), AcceptedBy(draft=0, both=50, text=50)


def measured(qa: AcceptedBy | None, code: AcceptedBy | None, names=("vanilla", "auto"), **more):
    """Every row's answer to a prompt of each task, at 1.5 times vanilla's speed."""
    told = {"qa": qa, "code": code}
    runs = [
        run(name, f"{task}-1", task=task, ms=100.0 if name == "vanilla" else 66.0, cost=cost(sources=told[task]))
        for name in names
        for task in TASKS
    ]
    return results(runs=tuple(runs), methods=names, **more)


def test_shares_of_the_accepted_tokens_are_told_by_task_and_in_all():
    table = where_from(measured(TEXT, CODE))
    assert table.columns[3:] == ("draft model alone", "both", "the request's own text alone")
    assert [row[0] for row in table.rows] == ["qa", "code", "average"]
    assert [row[3:] for row in table.rows] == [("30%", "10%", "60%"), ("0%", "50%", "50%"), ("15%", "30%", "55%")]
    assert {row[2] for row in table.rows} == {"3.00"}, "20 accepted tokens in 10 rounds"


def test_a_source_that_had_no_part_has_no_column_and_one_that_had_has_one():
    table = where_from(measured(TEXT, AcceptedBy(text=50, datastore=50)))
    assert table.columns[3:] == ("draft model alone", "both", "the request's own text alone", "datastore")
    assert table.rows[-1][-1] == "25%"


def test_rows_with_one_source_stand_beside_it_where_they_were_measured():
    table = where_from(measured(TEXT, CODE, names=("vanilla", "sam", "auto")))
    assert table.columns[-1] == "SAM" and "tree (ours)" not in table.columns
    assert all(row[-1] == row[1] for row in table.rows), "as fast as auto here"


def test_the_report_says_it_in_a_sentence_and_in_a_table():
    found = measured(TEXT, CODE)
    said = (
        "Of the draft tokens that auto had accepted, 15% only the draft model had named, 55% only retrieval, 30% both."
    )
    assert in_short(found) == said
    text = markdown(found, ())
    assert said in text and "## Where auto's gain comes from" in text


def test_of_results_that_do_not_tell_nothing_is_said():
    for found in (measured(None, None), results(), measured(AcceptedBy(), AcceptedBy())):
        assert where_from(found) is None and in_short(found) == ""
        assert "gain comes from" not in markdown(found, ())


def test_a_task_that_nothing_was_told_of_has_no_shares():
    table = where_from(measured(TEXT, None))
    assert [row[3] for row in table.rows] == ["30%", "-", "30%"]


def test_an_answer_of_before_verifiers_told_can_still_be_read():
    old = msgspec.to_builtins(run("auto", cost=cost()))
    del old["cost"]["sources"]
    assert msgspec.convert(old, Run).cost.sources is None
    assert msgspec.json.decode(msgspec.json.encode(Cost(sources=TEXT)), type=Cost).sources == TEXT
