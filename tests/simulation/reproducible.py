"""Actors that say the same at every run, on every machine, and in whichever process."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest.mock import patch

from protocols.messages import Hello, Role

T = TypeVar("T")


async def _at_once(work: Callable[..., T], *arguments: object, **_: object) -> T:
    """In place of anyio's thread."""
    return work(*arguments)


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """What is random or of this machine in the actors is not so: ids, and what client and verifier say of their
    process. What the gateway's library gives to a thread is done at once: while a thread works the loop turns as often
    as chance has it, and virtual time goes on by a nanosecond with each turn. Cycles are collected between simulations
    only, since a stream that is collected is cancelled."""
    chance = random.Random(seed)

    def hello(role: Role) -> Hello:
        return Hello(role, "client", chance.randbytes(6).hex())

    with (
        warnings.catch_warnings(),
        patch("uuid.uuid4", lambda: uuid.UUID(bytes=chance.randbytes(16))),
        patch("duoactor.client.connection.introduction", hello),
        patch("anyio.to_thread.run_sync", _at_once),
        patch("os.getpid", lambda: 1),
        patch("socket.gethostname", lambda: "host"),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # a killed process had not begun them yet
        level = logging.root.manager.disable
        logging.disable()
        gc.disable()
        gc.freeze()  # what is older need not be looked through
        try:
            yield
        finally:
            gc.collect()
            gc.enable()
            logging.disable(level)
