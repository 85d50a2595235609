"""How a benchmark is carried out from a terminal: progress, the actors' telemetry, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from duoactor.bench.benchmark import Access, Benchmark
from duoactor.bench.results import Document
from duoactor.bench.runner import Show
from duoactor.cli.environment import Environment
from duoactor.launch.deployment import Deployment
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated, run_until_signal
from protocols.transport import Feed


def carry_out(benchmark: Benchmark[Any], directory: Path) -> Document:
    """Measure with a bar of progress, and write what there is: also after Ctrl-C, and when an actor could not be kept
    up."""
    complete = False
    try:
        with progress() as show:
            run_until_signal(benchmark.measure(show))
        complete = True
    except (KeyboardInterrupt, Terminated):
        click.echo(f"duoactor: interrupted; go on with the same options and --resume --out {directory}", err=True)
        raise
    finally:
        benchmark.store.close()
        results = benchmark.results(complete)
        if benchmark.store.runs:
            benchmark.write(results, directory)
    return results


def access_to(environment: Environment, deployment: Deployment, log_lines: bool) -> Access:
    launch = LaunchReport(lines=log_lines)
    return Access(
        probe=environment.probe(deployment),
        connect=environment.connect_async,
        subscribe=_subscribed,
        report=launch,
        started=launch.done,
    )


@asynccontextmanager
async def _subscribed(address: str) -> AsyncIterator[Feed]:
    from protocols.zeromq import ZmqNetwork

    network = ZmqNetwork()
    try:
        yield network.subscribe(address)
    finally:
        network.close()


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
