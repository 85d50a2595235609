"""What the doctor measures, forecasts, says and writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.settings import DrafterSettings, VerifierSettings
from duoactor import config
from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.doctor import fix, forecast, words
from duoactor.doctor.agreement import TOKENS, agreement, read, texts
from duoactor.doctor.examine import compare, examine, predict, sample_prompts
from duoactor.doctor.report import Agreement, ModelReport, Report
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError
from protocols.messages import Sampling, TokenizerParts
from tests.world.fakes import INFO, ToyCodec, ToyLanguage, ToyTarget

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
LANGUAGE = ToyLanguage()
GPU = {1: 20_000.0, 8: 20_400.0, 32: 22_000.0}  # microseconds by rows
CPU = {1: 5_000.0, 8: 40_000.0, 32: 160_000.0}
STEP = {1: 500.0, 8: 900.0}


def agreeing(chance: float) -> Agreement:
    return Agreement(tokens=600, ranks=(chance, (1 - chance) / 3, (1 - chance) / 6), depths=(chance,) * 16)


def model(step_us, **fields) -> ModelReport:
    told = {
        "name": "org/model", "device": "cpu", "dtype": "float32", "parameters": 17_000_000, "vocab_size": 8192,
        "max_context": 2048, "weights_bytes": 68_000_000, "token_bytes": 24576, "kv_tokens": 80_000,
        "full_requests": 32,
    }  # fmt: skip
    return ModelReport(step_us=step_us, **{**told, **fields})


def examined(forward_us=GPU, step_us=STEP, chance=0.7) -> Report:
    report = Report(machine={"cpu": "a CPU", "cpus": 4, "python": "3.12"}, versions={"torch": "2"})
    report.target, report.draft, report.agreement = model(forward_us), model(step_us), agreeing(chance)
    predict(report)
    report.verdict = words.verdict(report)
    return report


# --- agreement -------------------------------------------------------------------------------------------------------


def test_the_doctor_reads_the_targets_own_text():
    prompt = (5, 9, 33)
    text = read(ToyTarget(LANGUAGE), prompt)
    assert text == LANGUAGE.continuation(prompt, Sampling(max_tokens=TOKENS, ignore_eos=True))[: len(text)]
    assert len(text) == TOKENS or text[-1] in INFO.eos_token_ids


def test_agreement_is_the_share_of_tokens_that_the_draft_had_right():
    seen = agreement([[1, 2, 1, 0], [1, 1]])
    assert seen.tokens == 6 and seen.ranks[:3] == pytest.approx((4 / 6, 1 / 6, 0))


def test_the_doctor_gives_the_targets_room_back():
    target = ToyTarget(LANGUAGE)
    found = texts(target, ToyCodec(), [chr(70 + i) * 3 for i in range(8)], timer=lambda: 0.0)
    assert len(found) == 8 and target.kv_used == 0


def test_depths_are_those_of_chains_that_begin_behind_what_was_wrong():
    seen = agreement([[1, 1, 2] * 100])
    assert seen.ranks[:2] == pytest.approx((2 / 3, 1 / 3))
    assert seen.depths[:2] == pytest.approx((1, 1), abs=0.05)
    assert seen.depths[2] < 0.1


def test_no_chain_is_forecast_to_bring_more_than_the_text_has_between_two_wrong_drafts():
    seen = agreement([[1, 1, 1, 1, 1, 1, 2, 2, 2, 2] * 60])
    belief = forecast.belief_of(forecast.Measured(GPU, STEP, seen))
    assert 1 + belief.expected(16)[0] == pytest.approx(1 / 0.4, rel=0.05)


def test_a_slow_target_answers_fewer_prompts_but_one():
    clock = iter(range(0, 1000, 20))
    assert len(texts(ToyTarget(LANGUAGE), ToyCodec(), ["AAA", "BBB", "CCC"], timer=lambda: next(clock))) == 1


# --- forecast --------------------------------------------------------------------------------------------------------


def test_good_drafts_pay_where_verifying_is_flat_and_bad_ones_do_not_where_it_is_dear():
    assert examined(GPU, STEP, 0.8).forecasts[0].speedup > 2
    assert examined(CPU, {1: 5000.0}, 0.3).forecasts[0].speedup < forecast.PAYS


def test_what_is_said_to_help_is_forecast_by_the_same_model():
    report = examined(CPU, STEP, 0.6)
    assert [one.speedup for one in report.helps] == sorted((one.speedup for one in report.helps), reverse=True)
    assert all(one.speedup > report.forecasts[0].speedup for one in report.helps)
    assert "eight tokens" in report.helps[0].what
    assert not any("eight tokens" in one.what for one in examined(GPU, STEP, 0.6).helps)


def test_the_forecast_is_what_was_measured_of_the_bundled_pair():
    """Measured on a quiet machine on 21 November 2026, with a core for each model: before layers were compiled, and
    before the target had the drafter's core too while that rests, as in docs/benchmarks/bundled/report.md."""
    chain = Agreement(tokens=1300, ranks=(0.56, 0.13, 0.05, 0.025), depths=(0.56,) * 16)
    forward_us, step_us = {1: 3520.0, 4: 4180.0, 8: 5200.0, 16: 8300.0}, {1: 250.0, 8: 600.0}
    measured = {"tree": 1.34, "duodecoding": 1.27, "pearl": 1.20, "sps": 1.04}
    for one in forecast.forecasts(forecast.Measured(forward_us, step_us, chain)):
        assert one.speedup == pytest.approx(measured[one.method], rel=0.12), one.method


def test_drafting_between_forwards_is_forecast_by_what_each_step_brings():
    seen = Agreement(tokens=1300, ranks=(0.6,), depths=(0.6,) * 8)
    flat = {1: 4000.0, 16: 4000.0}
    own = forecast.between_forwards(forecast.Measured(flat, {1: 200.0}, seen))
    assert own.method == "auto" and own.gamma >= 3
    expected = sum(0.6**depth for depth in range(own.gamma + 1))
    took = 4000.0 + forecast.ROUND_US + own.gamma * 200.0
    assert own.tokens_per_second == pytest.approx(1e6 * expected / took)
    assert forecast.between_forwards(forecast.Measured({1: 4e3, 16: 64e3}, {1: 2e3}, seen)).gamma == 0  # of no use


def test_drafts_are_held_against_a_target_that_has_the_resting_drafters_cpus():
    """In docs/benchmarks/bundled/report.md the target alone, with both cores, beats all but auto and pld."""
    seen = Agreement(tokens=1300, ranks=(0.56, 0.13, 0.05, 0.025), depths=(0.56,) * 16)
    core = forecast.Measured({1: 3400.0, 4: 3600.0, 8: 4600.0, 16: 8000.0}, {1: 250.0, 8: 600.0}, seen, inline=True)
    both = replace(core, lent_us={rows: 0.65 * us for rows, us in core.forward_us.items()})
    lent = {one.method: one for one in forecast.forecasts(both)}
    for one in forecast.forecasts(core):
        if one.method != "auto":
            assert lent[one.method].tokens_per_second == one.tokens_per_second
            assert lent[one.method].speedup < min(1.0, 0.75 * one.speedup)
    assert lent["auto"].speedup > 1.3


def test_sample_prompts_come_by_turns_of_the_tasks():
    prompts = sample_prompts()
    assert len(prompts) == len(set(prompts)) == 21


# --- words -----------------------------------------------------------------------------------------------------------


def test_the_verdict_is_one_sentence_that_says_whether_how_much_and_what_helps():
    pays, not_so = examined(GPU).verdict, examined(CPU, {1: 5000.0}, 0.3).verdict
    assert pays.startswith("Speculation should pay here: ") and "would help most" in pays and "70%" in pays
    assert "should not pay" in not_so
    for sentence in (pays, not_so):
        assert sentence.endswith(".") and "\n" not in sentence and ". " not in sentence


def test_lines_tell_times_memory_agreement_and_findings():
    report = examined()
    report.add("warning", "something to know")
    text = "\n".join(words.lines(report))
    for wanted in ("8: 20.40 ms", "0.50 ms", "24.0 KiB a token", "32 requests", "70%", "something to know", "no GPU"):
        assert wanted in text, wanted
    assert text.startswith(report.verdict)


# --- pairs that do not fit -------------------------------------------------------------------------------------------


def test_other_tokenizers_are_a_problem_and_say_what_differs():
    report = Report(machine={}, versions={})
    other = replace(INFO, model_id="org/other", tokenizer_digest="x", tokenizer=TokenizerParts(3))
    target = replace(INFO, tokenizer=TokenizerParts(5))
    assert not compare(target, other, report)
    assert "its vocabulary has 3 entries, the target's 5" in words.verdict(report)
    assert "not possible" in words.verdict(report)


def test_a_smaller_draft_vocabulary_or_context_is_a_warning():
    report = Report(machine={}, versions={})
    assert compare(INFO, replace(INFO, max_context=100, vocab_size=INFO.vocab_size - 7), report)
    assert [one.level for one in report.findings] == ["warning", "warning"] and not report.problems


def test_a_busy_machine_is_a_warning(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    missing = VerifierSettings(target="/none")
    report = examine(missing, DrafterSettings(), (0, 1), lambda text: None)
    assert "load 9.0 on 2 CPUs" in report.findings[0].text and report.findings[0].level == "warning"
    monkeypatch.setattr("os.getloadavg", lambda: (0.2, 9.0, 9.0))
    report = examine(missing, DrafterSettings(), (0, 1), lambda text: None)
    assert [one.level for one in report.findings] == ["problem"]


def test_models_that_do_not_load_are_findings_and_no_tracebacks(capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for target, words_of_it in ((tmp_path / "none", "does not exist"), (tmp_path, "cannot be loaded")):
        assert main(["doctor", "--target", str(target)], Environment()) == 1
        captured = capsys.readouterr()
        assert captured.out.startswith("Speculation with this draft is not possible: ")
        assert words_of_it in captured.out and "Traceback" not in captured.out + captured.err


# --- duo.toml --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("forward_us", "draft"), [(GPU, "bundled"), (CPU, "sam")])
def test_the_file_that_fix_writes_can_be_deployed(tmp_path, forward_us, draft):
    report = examined(forward_us, {1: 5000.0} if draft == "sam" else STEP, 0.3 if draft == "sam" else 0.7)
    file = tmp_path / "duo.toml"
    config.write_new(str(file), fix.toml(report, VerifierSettings(), DrafterSettings()))
    found = config.read_file(file)
    [table] = found.drafters
    assert (found.verifier["target"], table["draft"]) == ("bundled", draft)
    verifier = config.build(VerifierSettings, found.verifier, {"bind": f"ipc://{tmp_path}/v"})
    deploy(Wanted(verifier, (config.build(DrafterSettings, table),)), cpus=(0, 1))
    with pytest.raises(ConfigError, match="exists already"):
        config.write_new(str(file), "")


def test_the_bundled_draft_drafts_for_itself(capsys, tmp_path):
    """The whole of it with real models: the draft of the bundled pair as its own target."""
    file = tmp_path / "duo.toml"
    assert main(["doctor", "--target", str(PAIR / "draft"), "--json", "--fix", str(file)], Environment()) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agreement"]["ranks"][0] > 0.97
    assert {"1", "8"} <= report["target"]["step_us"].keys() and report["draft"]["step_us"]["1"] > 0
    assert {one["method"] for one in report["forecasts"]} == {"auto", "tree", "duodecoding", "pearl", "sps"}
    assert report["verdict"] in file.read_text()
