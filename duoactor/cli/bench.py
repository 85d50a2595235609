"""Commands that measure: bench and bench compare."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from actors.settings import BUNDLED, ControllerSettings, DrafterSettings, VerifierSettings
from duoactor import config, render
from duoactor.bench import benchmark, figures, provenance, report, tables, timeline
from duoactor.bench import compare as comparing
from duoactor.bench import datastore as datastores
from duoactor.bench.load import report as load_report
from duoactor.bench.load.arrivals import CLOSED, choose_arrivals, choose_streams
from duoactor.bench.load.cells import DOCUMENT, Cell, LoadResults, read_load
from duoactor.bench.load.cells import LINES as LOAD_LINES
from duoactor.bench.load.measure import LoadJob, load_results_of, measure_loads
from duoactor.bench.load.running import Loads
from duoactor.bench.load.summary import summarize_load
from duoactor.bench.methods import BY_NAME, choose
from duoactor.bench.results import LINES, Results, Run, Settings, read_document
from duoactor.bench.store import Store
from duoactor.bench.suites import BUILTIN, load_suite, select
from duoactor.bench.summary import summarize
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.measuring import access_to, carry_out
from duoactor.cli.options import json_option, log_options
from duoactor.launch.deployment import Deployment, deploy
from protocols.errors import ConfigError
from protocols.messages import Method, Sampling


@click.group(invoke_without_command=True)
@click.option(
    "--suite", default=BUILTIN, metavar="PATH", help="a JSONL file: ours, Spec-Bench's or HumanEval  [builtin]"
)
@click.option(
    "--methods", default="", metavar="LIST", help="rows, by commas; vanilla is always one  [all; with --streams auto]"
)
@click.option("--tasks", default="", metavar="LIST", help="only these tasks, by commas  [all]")
@click.option("--limit", default=0, type=click.IntRange(0), metavar="N", help="most prompts per task; 0: all  [0]")
@click.option("--repeats", default=2, type=click.IntRange(1), metavar="N", help="runs per prompt and method  [2]")
@click.option("--max-tokens", default=128, type=click.IntRange(1), metavar="N", help="most tokens per answer  [128]")
@click.option("--temperature", default=0.0, type=click.FloatRange(0), metavar="X", help="0 is greedy  [0]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="of the noise at a temperature  [0]")
@click.option("--target", default=BUNDLED, metavar="TEXT", help="target model: a directory or hub id  [bundled]")
@click.option("--draft", default=BUNDLED, metavar="TEXT", help="draft model: a directory or hub id  [bundled]")
@click.option("--device", default="auto", metavar="TEXT", help="torch device of the target  [auto]")
@click.option("--dtype", default="auto", metavar="TEXT", help="auto, float32, bfloat16 or float16  [auto]")
@click.option("--datastore", default="", metavar="DIR", help="for rest, and auto  [of Python's own library]")
@click.option("--datastore-from", multiple=True, metavar="FILE", help="build a datastore of this file; may be repeated")
@click.option(
    "--sweep", is_flag=True, help="also DuoDecoding with gamma two below to two above the chosen one (table 3)"
)
@click.option(
    "--streams", default="", metavar="LIST", help="under load instead: so many streams at once, such as 1,4,16,64"
)
@click.option(
    "--arrivals",
    default=CLOSED,
    metavar="LIST",
    help="with --streams: closed (who was answered asks again), poisson, bursts  [closed]",
)
@click.option("--out", default="", metavar="DIR", help="where results go  [a new bench-DATE-TIME]")
@click.option("--resume", is_flag=True, help="go on with what --out holds")
@click.option("--trace", default="", metavar="FILE", help="also write the rounds for Perfetto or chrome://tracing")
@json_option
@log_options
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> int:
    """Measure every method side by side. Writes tables, pictures and a JSON file.

    Methods take turns on each prompt, so that a noisy machine favours none; transformers' own generate is among them.
    Ctrl-C keeps what is finished, and --resume with the same options goes on. The exit code is 1 if a text of ours
    differs from the target's own.

    \b
    Example:  duoactor bench --limit 2
              duoactor bench --methods vanilla,sps,tree --tasks code,rag --out results
              duoactor bench --streams 1,4,16,64 --arrivals closed,poisson --limit 4
              duoactor bench --suite question.jsonl --target ./my-model --draft ./my-draft --device cuda
              duoactor bench compare before/results.json after/results.json
    """
    if context.invoked_subcommand is not None:
        return 0
    return _bench(context.obj, **options)


def _bench(
    environment: Environment,
    *,
    suite: str,
    methods: str,
    tasks: str,
    limit: int,
    repeats: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    target: str,
    draft: str,
    device: str,
    dtype: str,
    datastore: str,
    datastore_from: tuple[str, ...],
    sweep: bool,
    streams: str,
    arrivals: str,
    out: str,
    resume: bool,
    trace: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    rows = choose(methods or ("auto" if streams else "all"))
    prompts = select(load_suite(suite), [t.strip() for t in tasks.split(",") if t.strip()], limit)
    sampling = Sampling(temperature, max_tokens=max_tokens, seed=seed)
    measured: benchmark.Job | LoadJob = benchmark.Job(prompts, rows, repeats, sampling, sweep)
    if streams:
        loads = Loads(choose_arrivals(arrivals), choose_streams(streams), rows, repeats)
        measured = LoadJob(prompts, loads, sampling)
    if resume and not out:
        raise ConfigError("--resume needs --out DIR, the directory to go on with")
    directory = Path(out or time.strftime("bench-%Y%m%d-%H%M%S"))
    needed = any(row.method == Method.REST for row in rows)
    made = directory / "datastore"
    target = config.resolve_model(target, "target")  # a wrong name is told before anything is built
    stored = datastores.datastore_for(datastore, datastore_from, needed, made, target, environment.command)
    with private_address() as address:
        deployment = deploy(
            VerifierSettings(target=target, device=device, dtype=dtype, datastore=stored.directory, bind=address),
            [DrafterSettings(draft=draft)],
            ControllerSettings(),
            cpus=available_cpus(),
            command=environment.command,
            log_flags=("--verbose",) if verbose else ("--quiet",),
        )
        settings = benchmark.settings_of(deployment, measured, suite, stored.origin)
        if not figures.available() and not quiet:
            click.echo(f"duoactor: {figures.NO_MATPLOTLIB}", err=True)
        access = access_to(environment, deployment, verbose)
        found, load = benchmark.Observations(), provenance.load_now()
        if isinstance(measured, LoadJob):
            return _under_load(deployment, measured, settings, directory, resume, found, load, access, as_json)
        return _side_by_side(deployment, measured, settings, directory, resume, found, load, access, as_json, trace)


def _side_by_side(
    deployment: Deployment,
    job: benchmark.Job,
    settings: Settings,
    directory: Path,
    resume: bool,
    found: benchmark.Observations,
    load: str,
    access: benchmark.Access,
    as_json: bool,
    trace: str,
) -> int:
    store = Store(directory / LINES, settings, Run, resume=resume)

    def leave(complete: bool) -> Results:
        results = benchmark.results_of(deployment, job, store, found, _command(), load, complete)
        if store.runs:
            report.write_all(results, directory)
            if trace:
                timeline.write_trace(Path(trace), results.runs)
        return results

    results = carry_out(store, lambda show: benchmark.measure(deployment, job, store, found, access, show), leave)
    _print(results, directory, as_json)
    return 1 if any(line["different"] and BY_NAME[line["name"]].ours for line in results.table) else 0


def _under_load(
    deployment: Deployment,
    job: LoadJob,
    settings: Settings,
    directory: Path,
    resume: bool,
    found: benchmark.Observations,
    load: str,
    access: benchmark.Access,
    as_json: bool,
) -> int:
    store = Store(directory / LOAD_LINES, settings, Cell, resume=resume)

    def leave(complete: bool) -> LoadResults:
        results = load_results_of(deployment, job, store, found, _command(), load, complete)
        if store.runs:
            load_report.write_loads(results, directory)
        return results

    results = carry_out(store, lambda show: measure_loads(deployment, job, store, found, access, show), leave)
    _print_loads(results, directory, as_json)
    return 1 if any(line["failed"] for line in results.table) else 0


def _print(results: Results, directory: Path, as_json: bool) -> None:
    if as_json:
        document = render.plain(results)
        document.pop("runs")  # they are in the file
        render.print_json({**document, "directory": str(directory)})
        return
    for table in (tables.overview(summarize(results)), tables.gamma_sweep(results)):
        if table is not None:
            table.show()
    for sentence in report.verdict(results):
        print(sentence.replace("**", ""))
    print(f"By task, drafts, time and pictures: {directory / report.REPORT}", flush=True)


def _print_loads(results: LoadResults, directory: Path, as_json: bool) -> None:
    if as_json:
        document = render.plain(results)
        document.pop("cells")  # they are in the file
        render.print_json({**document, "directory": str(directory)})
        return
    lines = summarize_load(results)
    for table in load_report.load_tables(lines):
        table.show()
    for sentence in load_report.load_verdict(lines):
        print(sentence)
    print(f"How to read it, and pictures: {directory / report.REPORT}", flush=True)


def _command() -> str:
    """What makes the same again: without the directories of this machine, and without what only concerns this run."""
    words = (word for word in sys.argv[1:] if word != "--resume")
    return shlex.join(["duoactor", *(Path(word).name if word.startswith(("/", "~")) else word for word in words)])


@bench.command(name="report")
@click.argument("directory", metavar="DIR")
def rewrite(directory: str) -> int:
    """Write report.md and the pictures anew from the results in a directory.

    \b
    Example:  duoactor bench report results
    """
    if (Path(directory) / DOCUMENT).exists():
        load_report.write_loads(read_load(Path(directory)), Path(directory))
    else:
        report.write_all(read_document(Path(directory)), Path(directory))
    return 0


@bench.command()
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@json_option
def compare(before: str, after: str, as_json: bool) -> int:
    """Show what changed between two results: speed-ups, their ratio, and whether it is beyond the repeats' spread.

    \b
    Example:  duoactor bench compare before/results.json after/results.json
    """
    found = comparing.compare(read_document(Path(before)), read_document(Path(after)))
    if as_json:
        render.print_json(comparing.document(found))
        return 0
    comparing.table(found).show()
    for sentence in comparing.sentences(found):
        print(sentence)
    return 0
