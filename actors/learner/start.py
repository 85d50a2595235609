"""Puts the learner together from its settings: priority, model in training, versions on disk, loop.

torch is imported here, lazily.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import zlib
from pathlib import Path

from actors.files import user_cache
from actors.peer import Line, introduction
from actors.process import open_network, pin, run_actor
from actors.settings import LearnerSettings
from protocols import wire
from protocols.errors import ConfigError
from protocols.messages import Role, ToLearner

log = logging.getLogger("duoactor")
LOWEST = 19  # priority
AUTOGROUP = Path("/proc/self/autogroup")  # this session's, see sched(7)


def give_way() -> None:
    """Everybody else first: on a core with other work this process does not compute.

    Linux weighs sessions against each other before the processes of one, and each actor that `up` starts has a
    session of its own: a learner of lowest priority in it took half of the core that it shared with the target's
    helper.
    """
    os.nice(LOWEST)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if AUTOGROUP.exists() and os.getsid(0) == os.getpid():  # else a user's terminal would be slow
        with contextlib.suppress(OSError):
            AUTOGROUP.write_text(str(LOWEST))


def directory_of(settings: LearnerSettings, model_id: str) -> Path:
    """The named directory, or one in this user's cache for each model and verifier. Raises ConfigError."""
    if settings.directory:
        named = os.path.expanduser(settings.directory)
        if named.startswith("~"):
            raise ConfigError(f"there is no home for {named}: give --directory a whole path")
        return Path(named).absolute()
    verifier = f"{zlib.crc32(settings.connect.encode()):08x}"
    return user_cache() / "learner" / f"{model_id.replace('/', '--')}-{verifier}"


def identity(draft: str) -> str:
    """Tells the weights of a draft from others under the same name."""
    files = sorted(Path(draft).glob("*.safetensors")) if Path(draft).is_dir() else []
    return " ".join([draft, *(f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)])


def run_learner(settings: LearnerSettings) -> int:
    """Load the draft model, then learn until a signal."""

    async def main(stop: asyncio.Event) -> None:
        from actors.learner.loop import Learner
        from actors.learner.versions import Versions
        from actors.training.online import OnlineTrainer

        pin(settings.cpus)
        give_way()
        network = open_network(settings)
        try:
            trainer = OnlineTrainer(settings.draft, settings.dtype)
            hello = introduction(Role.LEARNER, settings.actor_id, trainer.info)
            versions = Versions(directory_of(settings, hello.model_id), identity(settings.draft))
            log.info("ready: %s, version %d", hello.model_id, versions.current.number)
            line = Line(network, settings.connect, hello, wire.Decoder(ToLearner))
            await Learner(trainer, versions, line).run(stop)
        finally:
            network.close()

    return run_actor(main)
