"""The command bench."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actors.settings import Settings
from duoactor import config, render
from duoactor.bench import report
from duoactor.bench.benchmark import BenchJob, Benchmark, Show, failed
from duoactor.bench.datastore import datastore_for
from duoactor.bench.methods import choose
from duoactor.bench.results import DOCUMENT, Results
from duoactor.bench.streams import choose_streams
from duoactor.bench.suites import BUILTIN, load_suite, select
from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import (
    BRIEF_PAIR,
    Command,
    Logs,
    json_option,
    log_options,
    pair_options,
    settings_from,
    struct_options,
)
from duoactor.launch.signals import Terminated, run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError
from protocols.messages import Method, Sampling


class BenchOptions(Settings, frozen=True, kw_only=True):
    """Options of a benchmark, and the directory of its results."""

    suite: Annotated[
        str, Meta(description="prompts: builtin, or a JSONL file in our, Spec-Bench's or HumanEval's form")
    ] = BUILTIN
    methods: Annotated[
        str,
        Meta(
            description="methods, separated by commas, besides vanilla; NAME@GAMMA fixes gamma; empty: all, or with "
            "--streams auto"
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
    streams: Annotated[
        str, Meta(description="measure with that many streams at once, such as 1,4,16,64; empty: one by one")
    ] = ""
    out: Annotated[str, Meta(description="directory for the results; empty: a new bench-DATE-TIME")] = ""

    def job(self) -> BenchJob:
        """Raises ConfigError for an unknown suite, method or task, and for bad numbers of streams."""
        return BenchJob(
            prompts=select(load_suite(self.suite), [t.strip() for t in self.tasks.split(",") if t.strip()], self.limit),
            rows=choose(self.methods or ("auto" if self.streams else "all")),
            repeats=self.repeats,
            sampling=Sampling(self.temperature, max_tokens=self.max_tokens, seed=self.seed),
            streams=choose_streams(self.streams) if self.streams else (),
            suite=self.suite,
        )


# What most people use, in fewer words than --help-all
BRIEF = {
    **BRIEF_PAIR,
    **dict.fromkeys(("suite", "methods", "tasks", "limit", "max_tokens", "streams", "out", "as_json"), ""),
}


@click.command(cls=Command, brief=BRIEF)
@struct_options(BenchOptions)
@pair_options
@json_option
@log_options
@click.pass_obj
def bench(environment: Environment, /, pair: Wanted, as_json: bool, logs: Logs, **flags: Any) -> int:
    """Measure every method side by side. Writes tables and a JSON file.

    Methods take turns on each prompt, so that a noisy machine favours none; transformers' own generate is among them.
    Ctrl-C keeps what is finished. The exit code is 1 if a text of ours differs from the target's own.

    \b
    Example:  duoactor bench --limit 2
              duoactor bench --methods sps,tree --tasks code,rag --out results
              duoactor bench --methods duodecoding@4,duodecoding@8 --limit 2
              duoactor bench --streams 1,4,16,64 --limit 4
              duoactor bench --suite question.jsonl --target ./my-model
    """
    options = settings_from(BenchOptions, {}, flags)
    job = options.job()
    directory = Path(options.out or time.strftime("bench-%Y%m%d-%H%M%S"))
    if (directory / DOCUMENT).exists():
        raise ConfigError(f"{directory / DOCUMENT} exists already: choose another --out")
    needed = any(row.method == Method.REST for row in job.rows)
    # a wrong name is reported before anything is built
    target = config.resolve_model(pair.verifier.target, "target", tokenizer=pair.verifier.tokenizer)
    stored = datastore_for(options.datastore, needed, directory / "datastore", target, environment.command)
    with private_address() as address:
        wanted = pair.at(address, target=target, datastore=stored.directory)
        job = dataclasses.replace(job, datastore=stored.origin)

        deployment = environment.deploy(wanted, logs.flags or ("--quiet",))
        running = partial(environment.running, log_lines=logs.verbose)
        results = _carry_out(Benchmark(deployment, job, running, command_line()), directory)
    if as_json:
        document = render.plain(results)
        del document["runs"], document["loads"]  # they are in the file
        render.print_json({**document, "directory": str(directory)})
    else:
        report.show(results, directory)
    return 1 if failed(results) else 0


def _carry_out(benchmark: Benchmark, directory: Path) -> Results:
    """Measure with a progress bar, and write the result: also after Ctrl-C, and when an actor could not be kept
    up."""
    directory.mkdir(parents=True, exist_ok=True)
    complete = False
    try:
        with progress() as show:
            run_until_signal(benchmark.measure(show))
        complete = True
    except (KeyboardInterrupt, Terminated):
        left = f"what was measured is in {directory}" if benchmark.runs or benchmark.loads else "nothing was measured"
        render.say(f"interrupted; {left}")
        raise
    finally:
        results = benchmark.results(complete)
        if results.runs or results.loads:
            report.write_all(results, directory)
        elif not any(directory.iterdir()):
            directory.rmdir()
    return results


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """A bar with the time left on a terminal; nothing in a pipe."""
    bar = Progress(
        BarColumn(30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=None)

    def show(text: str, done: int, count: int) -> None:
        bar.update(task, description=text, completed=done, total=count)
        bar.start()  # not before: until the actors are ready the line is theirs

    try:
        yield show
    finally:
        bar.stop()


def command_line() -> str:
    """The command that measures the same again, without the directories of this machine."""
    words = (Path(word).name if word.startswith(("/", "~")) else word for word in sys.argv[1:])
    return shlex.join(["duoactor", *words])
