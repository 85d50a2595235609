"""How a benchmark is carried out from a terminal: progress, the actors' telemetry, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from duoactor.bench.benchmark import Access
from duoactor.bench.runner import Show
from duoactor.bench.store import Store
from duoactor.cli.environment import Environment
from duoactor.launch.deployment import Deployment
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated, run_until_signal
from protocols.transport import Feed

T = TypeVar("T")


def carry_out(store: Store[Any], measure: Callable[[Show], Coroutine[Any, Any, None]], leave: Callable[[bool], T]) -> T:
    """Measure with a bar of progress. ``leave`` is told whether all was finished, also after Ctrl-C and when an actor
    could not be kept up: it writes what there is."""
    complete = False
    try:
        with _progress() as show:
            run_until_signal(measure(show))
        complete = True
    except (KeyboardInterrupt, Terminated):
        go_on = f"--resume --out {store.path.parent}"
        click.echo(f"duoactor: interrupted; go on with the same options and {go_on}", err=True)
        raise
    finally:
        store.close()
        results = leave(complete)
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
def _progress() -> Iterator[Show]:
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
