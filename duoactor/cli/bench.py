"""The commands bench and bench compare."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from actors.settings import ControllerSettings
from duoactor import config, render
from duoactor.bench import compare as comparing
from duoactor.bench import figures
from duoactor.bench.benchmark import Benchmark, Job, SideBySide
from duoactor.bench.datastore import datastore_for
from duoactor.bench.load.arrivals import CLOSED, choose_arrivals, choose_streams
from duoactor.bench.load.measure import UnderLoad
from duoactor.bench.methods import choose
from duoactor.bench.results import read_results
from duoactor.bench.store import Store
from duoactor.bench.suites import BUILTIN, load_suite, select
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.measuring import access_to, carry_out
from duoactor.cli.options import Pair, json_option, log_options, pair_options
from duoactor.launch.deployment import deploy
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
@pair_options
@click.option("--datastore", default="", metavar="DIR", help="for rest, and auto  [of Python's own library]")
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
    pair: Pair,
    datastore: str,
    sweep: bool,
    streams: str,
    arrivals: str,
    out: str,
    resume: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    job = Job(
        prompts=select(load_suite(suite), [t.strip() for t in tasks.split(",") if t.strip()], limit),
        rows=choose(methods or ("auto" if streams else "all")),
        repeats=repeats,
        sampling=Sampling(temperature, max_tokens=max_tokens, seed=seed),
        sweep=sweep,
        streams=choose_streams(streams) if streams else (),
        arrivals=choose_arrivals(arrivals),
    )
    if resume and not out:
        raise ConfigError("--resume needs --out DIR, the directory to go on with")
    directory = Path(out or time.strftime("bench-%Y%m%d-%H%M%S"))
    needed = any(row.method == Method.REST for row in job.rows)
    target = config.resolve_model(pair.verifier.target, "target")  # a wrong name is told before anything is built
    stored = datastore_for(datastore, needed, directory / "datastore", target, environment.command)
    kind: type[Benchmark[Any]] = UnderLoad if streams else SideBySide
    with private_address() as address:
        deployment = deploy(
            replace(pair.verifier, target=target, datastore=stored.directory, bind=address),
            [pair.drafter],
            ControllerSettings(),
            cpus=available_cpus(),
            command=environment.command,
            log_flags=("--verbose",) if verbose else ("--quiet",),
        )
        settings = job.settings(deployment, suite, stored.origin)
        if not figures.available() and not quiet:
            click.echo(f"duoactor: {figures.NO_MATPLOTLIB}", err=True)
        store = Store(directory / kind.lines, settings, kind.record, resume=resume)
        access = access_to(environment, deployment, verbose)
        results = carry_out(kind(deployment, job, access, store, _command()), directory)
    if as_json:
        document = render.plain(results)
        del document[kind.records]  # they are in the file
        render.print_json({**document, "directory": str(directory)})
    else:
        kind.show(results, directory)
    return 1 if kind.failed(results) else 0


def _command() -> str:
    """What makes the same again: without the directories of this machine, and without what only concerns this run."""
    words = (word for word in sys.argv[1:] if word != "--resume")
    return shlex.join(["duoactor", *(Path(word).name if word.startswith(("/", "~")) else word for word in words)])


@bench.command()
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@json_option
def compare(before: str, after: str, as_json: bool) -> int:
    """Show what changed between two results: speed-ups, their ratio, and whether it is beyond the repeats' spread.

    \b
    Example:  duoactor bench compare before/results.json after/results.json
    """
    found = comparing.compare(read_results(Path(before)), read_results(Path(after)))
    if as_json:
        render.print_json(comparing.document(found))
        return 0
    comparing.table(found).show()
    for sentence in comparing.sentences(found):
        print(sentence)
    return 0
