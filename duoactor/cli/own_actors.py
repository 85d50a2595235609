"""The actors of a command that starts them and ends them when it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import click

from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import Place, make_pair
from duoactor.launch.preflight import check_tokenizers
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import Terminated


@contextmanager
def place_of(environment: Environment, place: Place, model: str) -> Iterator[Place]:
    """Address of a verifier of ``model`` while the block runs; without a model ``place``, where one runs already."""
    if not model:
        yield place
        return
    if place.connect:
        raise click.UsageError(
            f"{model} is started here, and --connect or $DUOACTOR_CONNECT names what runs elsewhere: leave one out"
        )
    from duoactor.client.sync_client import Runner

    with private_address() as address, _terminable():
        deployment = environment.deploy(make_pair(target=model).at(address))
        check_tokenizers(deployment)
        runner, stack = Runner(), AsyncExitStack()
        try:
            runner.run(stack.enter_async_context(environment.supervised(deployment, LaunchReport(lines=False))))
            yield Place(connect=address)
        finally:
            runner.close(stack.aclose)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block, so that the started processes are stopped."""

    def end(number: int, frame: object) -> None:
        raise Terminated

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
