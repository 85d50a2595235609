"""What the report says in words."""

from duoactor.bench import report
from tests.bench.benchkit import results


def test_the_report_says_who_loses_and_what_was_inflated():
    origin = {"source": "target", "source_parameters": 17_000_000, "parameters": 6_700_000_000}
    text = report.markdown(results(inflated={"target": origin}, complete=False))
    assert "Fastest on average: DuoDecoding, " in text
    assert "Slower than vanilla on average: transformers (0.52)." in text
    assert "writes what target (17M parameters) writes, at the cost of 6700M" in text
    assert "**Incomplete**" in text
    assert "All 24 compared texts are identical to vanilla's." in text


def test_where_nothing_is_faster_than_vanilla_the_report_says_so():
    found = results()
    found.runs = tuple(one for one in found.runs if one.method in ("vanilla", "transformers"))
    said = report.verdict(found)
    assert said[0] == "Nothing is faster than vanilla on average; transformers comes nearest (0.52)."
    assert said[2] == "It is beaten on qa (vanilla 1.00, it 0.52); code (vanilla 1.00, it 0.52)."


def test_of_one_task_and_one_text_the_report_says_nothing_twice():
    found = results()
    found.runs = tuple(
        one
        for one in found.runs
        if one.method in ("vanilla", "transformers") and (one.prompt, one.repeat) == ("qa-1", 0)
    )
    assert report.verdict(found) == [
        "Nothing is faster than vanilla on average; transformers comes nearest (0.52).",
        "Slower than vanilla on average: transformers (0.52).",
        "The compared text is identical to vanilla's.",
    ]


def test_a_report_names_models_but_not_the_directories_they_lie_in():
    found = results(models={"target": "/home/somebody/models/big", "draft": "Qwen/Qwen3-0.6B"})
    assert "target big, draft Qwen/Qwen3-0.6B" in report.markdown(found)
    assert "somebody" not in report.markdown(found)
