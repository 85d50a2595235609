"""doctor: whether speculation pays with a pair of models on this machine."""

from __future__ import annotations

import sys

import click
from msgspec.structs import replace

from duoactor import config, doctor, render
from duoactor.bench.benchmark import BenchJob, Benchmark
from duoactor.bench.methods import choose
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.measuring import access_to
from duoactor.cli.options import Pair, json_option, pair_options
from duoactor.launch.deployment import deploy
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import DuoactorError
from protocols.messages import Sampling


@click.command("doctor")
@pair_options
@click.option("--draft-device", default="cpu", metavar="TEXT", help="torch device of the draft  [cpu]")
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
def doctor_command(environment: Environment, /, pair: Pair, draft_device: str, file: str | None, as_json: bool) -> int:
    """Measure for 20 seconds whether speculation pays here.

    Starts the pair as `duoactor up` does. The target alone, retrieval alone and auto answer the same prompts in turns.
    The exit code is 1 if the models cannot work together.

    \b
    Example:  duoactor doctor
              duoactor doctor --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --fix
              duoactor doctor --json | jq .verdict
    """
    drafter = replace(pair.drafter, device=draft_device)
    report = doctor.begun(pair.verifier, drafter, len(available_cpus()))
    try:
        _measure(environment, report, pair, draft_device)
    except DuoactorError as error:
        report.add("problem", str(error).rstrip("."))
    report.verdict = doctor.verdict(report)
    if file is not None:
        config.write_new(file, doctor.toml(report, pair.verifier, drafter))
    if as_json:
        render.print_json(report)
    else:
        click.echo("\n".join(doctor.lines(report)))
        if file is not None:
            click.echo(f"\nwrote {file}; use it with `duoactor up --config {file}`")
    return 1 if report.problems else 0


def _measure(environment: Environment, report: doctor.DoctorReport, pair: Pair, draft_device: str) -> None:
    target = config.resolve_model(pair.verifier.target, "target")
    job = BenchJob(doctor.sample_prompts(), choose(doctor.METHODS), 1, Sampling(max_tokens=doctor.TOKENS))
    spinner = render.Spinner(sys.stderr)
    with private_address() as address:
        deployment = deploy(
            Wanted(replace(pair.verifier, target=target, bind=address), (replace(pair.drafter, device=draft_device),)),
            cpus=available_cpus(),
            command=environment.command,
            log_flags=("--quiet",),
        )
        bench = Benchmark(deployment, job, access_to(environment, deployment, False), "duoactor doctor")
        try:
            run_until_signal(doctor.measure(bench, lambda text, done, count: spinner.show(text and f"{text} …")))
        finally:
            spinner.show("")
        doctor.fill(report, bench.results(complete=True))
