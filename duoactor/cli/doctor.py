"""doctor: whether speculation pays with a pair of models on this machine."""

from __future__ import annotations

import sys

import click

from actors.engines.heads.cached import snapshot_of
from duoactor import config, embedded, render
from duoactor import doctor as diagnosis
from duoactor.bench.benchmark import BenchJob, Benchmark
from duoactor.bench.methods import choose
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.options import BRIEF_PAIR, Command, json_option, make_pair, pair_is_named, pair_options
from duoactor.cli.waiting import enlarging
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import DuoactorError
from protocols.messages import Sampling

# What most people use, in fewer words than --help-all
BRIEF = {
    **BRIEF_PAIR,
    "target": "target model: a directory, hub id or GGUF file  [what `duoactor up` serves]",
    "file": "",
    "as_json": "",
}


@click.command(cls=Command, brief=BRIEF)
@pair_options
@click.option(
    "--fix",
    "file",
    is_flag=False,
    flag_value="duo.toml",
    metavar="[FILE]",
    help="write the result to a duo.toml, for `duoactor up --config`  [duo.toml]",
)
@json_option
@click.pass_obj
def doctor(environment: Environment, /, pair: Wanted, file: str | None, as_json: bool) -> int:
    """Measure for 20 seconds whether speculation pays here.

    Starts the pair, or what `duoactor up` serves where none is named. The target alone, retrieval alone and auto answer
    the same prompts in turns. The exit code is 1 if nothing could be measured, or a text differs.

    \b
    Example:  duoactor doctor
              duoactor doctor --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --fix
              duoactor doctor --json | jq .verdict
    """
    if file is not None:
        config.check_new(file)
    if not pair_is_named():
        with enlarging() as progress:
            first, own = embedded.first(progress), pair.verifier
        pair = make_pair(target=first, device=own.device, dtype=own.dtype)
    report = diagnosis.begun(pair.verifier, pair.drafters, len(available_cpus()))
    try:
        _measure(environment, report, pair, as_json)
    except DuoactorError as error:
        report.add("problem", str(error).rstrip("."))
    report.verdict = diagnosis.verdict(report)
    writes = file is not None and not report.problems
    if as_json:
        render.print_json(report)
    else:  # before the file, which may not be writable
        click.echo("\n".join(diagnosis.lines(report, render.columns(sys.stdout))))
    if file is not None and writes:
        config.write_new(file, diagnosis.toml(report, pair.verifier, pair.drafters))
    if file is not None and not as_json:
        done = f"wrote {file}; use it with `duoactor up --config {file}`"
        click.echo(f"\n{done if writes else f'{file} is not written: there is nothing to recommend'}")
    return 1 if report.problems else 0


def _measure(environment: Environment, report: diagnosis.DoctorReport, pair: Wanted, as_json: bool) -> None:
    target = config.resolve_model(pair.verifier.target, "target", tokenizer=pair.verifier.tokenizer)
    from actors.engines.weights.understood import understood  # numpy is of the engine's extra

    report.weights = tuple(understood(str(snapshot_of(target))))
    if report.weights and not as_json:  # before anything is computed with them
        click.echo("\n".join(["weights as they are stored", *(f"  {line}" for line in report.weights), ""]))
    job = BenchJob(diagnosis.sample_prompts(), choose(diagnosis.METHODS), 1, Sampling(max_tokens=diagnosis.TOKENS))
    with private_address() as address, render.Spinner(sys.stderr) as spinner:
        deployment = environment.deploy(pair.at(address, target=target))
        bench = Benchmark(deployment, job, environment.running, "duoactor doctor")
        run_until_signal(diagnosis.measure(bench, report, lambda text, *_: spinner.show(text and f"{text} …")))
        diagnosis.fill(report, bench.results(complete=True))
