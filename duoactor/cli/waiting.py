"""A line on stderr about a command's wait, after a second of silence."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Place
from duoactor.client.sync_client import Client, Stream
from protocols.address import default_address
from protocols.messages import Chunk

SILENCE_S = 1.0


@contextmanager
def say_if_slow(text: str, *, quiet: bool = False) -> Iterator[None]:
    """One line, once, if the block takes longer than ``SILENCE_S``."""
    timer = threading.Timer(SILENCE_S, render.say, (f"{text} …",))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def enlarging() -> Iterator[Callable[[int, int], None]]:
    """Takes the bytes made and the bytes in all of the large bundled target, and shows its share."""
    with render.Spinner(sys.stderr) as spinner:
        yield lambda made, size: spinner.show(
            f"writing the large bundled target, the first time only: {made / size:.0%}"
        )


@contextmanager
def connected(environment: Environment, place: Place, *, quiet: bool = False) -> Iterator[Client]:
    """A client that has found its verifier. ``quiet``: wait without a word, as for a JSON document."""
    # the client's own words: that a verifier was lost in mid-stream, and that it is back
    logging.basicConfig(
        stream=sys.stderr, format="duoactor: %(message)s", level=logging.ERROR if quiet else logging.WARNING
    )
    address = place.connect or default_address()
    with ExitStack() as stack:
        with say_if_slow(f"waiting for the verifier at {address}, which may be loading its model", quiet=quiet):
            client = stack.enter_context(environment.connect(place.connect, place.key, place.server_key))
        yield client


@contextmanager
def reading(stream: Stream, *, quiet: bool = False) -> Iterator[Iterator[Chunk]]:
    """The chunks of a stream. Leaving cancels the request at once."""

    def chunks() -> Iterator[Chunk]:
        with say_if_slow("waiting for the first token: a long prompt, or other requests before this one", quiet=quiet):
            first = next(stream, None)
        if first is not None:
            yield first
            yield from stream

    with closing(stream):
        yield chunks()
