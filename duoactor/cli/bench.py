"""The commands bench and bench compare."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta
from msgspec.structs import replace

from actors.settings import Settings
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
from duoactor.cli.options import Logs, Pair, json_option, log_options, pair_options, settings_from, struct_options
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError
from protocols.messages import Method, Sampling


class BenchOptions(Settings, frozen=True, kw_only=True):
    """What is measured, and where the results go."""

    suite: Annotated[
        str, Meta(description="prompts: builtin, or a JSONL file of ours, Spec-Bench's or HumanEval's form")
    ] = BUILTIN
    methods: Annotated[
        str,
        Meta(
            description="methods, separated by commas; vanilla is always among them; empty: all, or auto with --streams"
        ),
    ] = ""
    tasks: Annotated[str, Meta(description="only these tasks, separated by commas; empty: all")] = ""
    limit: Annotated[int, Meta(description="maximum number of prompts per task; 0: all", ge=0)] = 0
    repeats: Annotated[int, Meta(description="runs per prompt and method", ge=1)] = 2
    max_tokens: Annotated[int, Meta(description="maximum number of tokens per answer", ge=1)] = 128
    temperature: Annotated[float, Meta(description="sampling temperature; 0 is greedy", ge=0)] = 0.0
    seed: Annotated[int, Meta(description="seed of the sampling at temperatures above 0", ge=0)] = 0
    datastore: Annotated[
        str, Meta(description="datastore for rest and auto; empty: one is built of Python's own library")
    ] = ""
    sweep: Annotated[
        bool,
        Meta(
            description="also DuoDecoding with gamma from two below to two above the chosen one (the paper's table 3)"
        ),
    ] = False
    streams: Annotated[
        str, Meta(description="measure under load, with so many streams at once, such as 1,4,16,64; empty: one by one")
    ] = ""
    arrivals: Annotated[
        str, Meta(description="with --streams: closed (each user asks again once answered), poisson or bursts")
    ] = CLOSED
    out: Annotated[str, Meta(description="directory for the results; empty: a new bench-DATE-TIME")] = ""
    resume: Annotated[bool, Meta(description="continue an interrupted run in --out")] = False

    def job(self) -> Job:
        """Raises ConfigError for a suite, method, task or load that there is not."""
        return Job(
            prompts=select(load_suite(self.suite), [t.strip() for t in self.tasks.split(",") if t.strip()], self.limit),
            rows=choose(self.methods or ("auto" if self.streams else "all")),
            repeats=self.repeats,
            sampling=Sampling(self.temperature, max_tokens=self.max_tokens, seed=self.seed),
            sweep=self.sweep,
            streams=choose_streams(self.streams) if self.streams else (),
            arrivals=choose_arrivals(self.arrivals),
        )


@click.group(invoke_without_command=True)
@struct_options(BenchOptions)
@pair_options
@json_option
@log_options
@click.pass_context
def bench(context: click.Context, /, pair: Pair, as_json: bool, logs: Logs, **flags: Any) -> int:
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
    return _bench(context.obj, settings_from(BenchOptions, {}, flags), pair, as_json, logs)


def _bench(environment: Environment, options: BenchOptions, pair: Pair, as_json: bool, logs: Logs) -> int:
    job = options.job()
    if options.resume and not options.out:
        raise ConfigError("--resume needs --out DIR, the directory to go on with")
    directory = Path(options.out or time.strftime("bench-%Y%m%d-%H%M%S"))
    needed = any(row.method == Method.REST for row in job.rows)
    target = config.resolve_model(pair.verifier.target, "target")  # a wrong name is told before anything is built
    stored = datastore_for(options.datastore, needed, directory / "datastore", target, environment.command)
    kind: type[Benchmark[Any]] = UnderLoad if job.streams else SideBySide
    with private_address() as address:
        deployment = deploy(
            Wanted(replace(pair.verifier, target=target, datastore=stored.directory, bind=address), (pair.drafter,)),
            cpus=available_cpus(),
            command=environment.command,
            log_flags=logs.flags or ("--quiet",),
        )
        settings = job.settings(deployment, options.suite, stored.origin)
        if not figures.available() and not logs.quiet:
            click.echo(f"duoactor: {figures.NO_MATPLOTLIB}", err=True)
        store = Store(directory / kind.lines, settings, kind.record, resume=options.resume)
        access = access_to(environment, deployment, logs.verbose)
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
    """Show what changed between two results.

    Speed-ups, their ratio, and whether it is beyond the repeats' spread.

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
