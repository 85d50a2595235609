"""``duoactor up --launcher ray``: the actors on a Ray cluster, for as long as this runs."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duoactor import render
from duoactor.launch.signals import Terminated
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from duoactor.ray import Cluster


def up_on_ray(wanted: Wanted, verifiers: int, as_json: bool, log_flags: Sequence[str]) -> int:
    """Start them, print where they are and stay until a signal, then end them."""
    try:
        from duoactor import ray
    except ImportError as error:
        raise ConfigError(str(error)) from None

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    cluster = ray.start(wanted, verifiers, report=_say, log_flags=log_flags)
    try:
        _tell(cluster, wanted, as_json)
        threading.Event().wait()
    except (KeyboardInterrupt, Terminated):
        pass  # the usual way to end it
    finally:
        cluster.close()
        ray.down()
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(cluster: Cluster, wanted: Wanted, as_json: bool) -> None:
    actors = cluster.actors()
    if as_json:
        keys = {"key": cluster.key, "server_key": cluster.server_key}
        render.print_json({"address": cluster.address, **keys, "actors": actors})
        return
    print(f"duoactor is up at {cluster.address}\n")
    for actor in actors:
        print(f"  {actor['actor_id']:<14} {actor['node']:<16} {render.model_name(actor['model'])}".rstrip())
    flags = ["--connect", cluster.address, "--key", cluster.key, "--server-key", cluster.server_key]
    print(f'\nTry:   {shlex.join(["duoactor", "generate", *flags])} "def factorial(n):"')
    if wanted.gateway is not None:
        print(f"       curl http://{wanted.gateway.http}/v1/models")
    print(f"See:   {shlex.join(['duoactor', 'status', *flags])}\nStop:  Ctrl-C", flush=True)
