"""A benchmark on a terminal: progress, the actors' telemetry, and the results of an interrupted run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from duoactor.bench.benchmark import Access, Benchmark, Show
from duoactor.bench.report import write_all
from duoactor.bench.results import Results
from duoactor.cli.environment import Environment
from duoactor.launch.deployment import Deployment
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated, run_until_signal


def carry_out(benchmark: Benchmark, directory: Path) -> Results:
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
        click.echo(f"duoactor: interrupted; {left}", err=True)
        raise
    finally:
        results = benchmark.results(complete)
        if results.runs or results.loads:
            write_all(results, directory)
        elif not any(directory.iterdir()):
            directory.rmdir()
    return results


def access_to(environment: Environment, deployment: Deployment, log_lines: bool) -> Access:
    launch = LaunchReport(lines=log_lines)
    return Access(
        probe=environment.probe(deployment),
        connect=environment.connect_async,
        report=launch,
        started=launch.done,
    )


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
