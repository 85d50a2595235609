"""The datastore of row rest: the given one, or one of a text that every machine has."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duoactor.launch.preflight import check_name
from protocols.errors import ConfigError

STANDARD_LIBRARY = "the modules of Python's standard library"


@dataclass(frozen=True, slots=True)
class RestDatastore:
    """``origin`` is what reports say of it."""

    directory: str = ""  # empty: none
    origin: str = ""


def standard_library() -> list[str]:
    """Source files that any Python comes with: real text that no prompt was written from."""
    return sorted(str(path) for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def datastore_for(
    given: str, needed: bool, made: Path, target: str, command: Callable[..., Sequence[str]], files: int | None = None
) -> RestDatastore:
    """The ``given`` one; or where a row needs one, one of the standard library, built in ``made`` once.

    ``command`` makes a command line of ours. ``files``: how many are enough; None: all. Raises ConfigError, and
    ModelError for a target that is nowhere.
    """
    if given:
        if not Path(given).is_dir():
            raise ConfigError(
                f"there is no datastore at {given}: make one with `duoactor datastore build {given} FILES…`"
            )
        return RestDatastore(given, given)
    if not needed:
        return RestDatastore()
    if not made.is_dir():
        check_name(target)
        build = command("datastore", "build", str(made), *standard_library()[:files], f"--target={target}")
        done = subprocess.run(build, capture_output=True, text=True)
        if done.returncode != 0:
            last = done.stderr.strip().rpartition("\n")[2].removeprefix("duoactor: ")
            raise ConfigError(f"the datastore could not be built: {last}")
    return RestDatastore(str(made), STANDARD_LIBRARY)
