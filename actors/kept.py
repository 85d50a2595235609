"""What a start has measured of a model on this machine, kept on disk for the next start.

A file's name is a digest of all that the figures depend on: the model, the processor and its use, the versions of the
libraries and of the code that was measured. So nothing is ever invalidated, and what is lost is measured again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from actors.models import ModelInfo

T = TypeVar("T")
MOST = 256  # files; the oldest go first
LIBRARIES = ("duoactor", "torch", "numba", "triton", "numpy")


def kept(
    kind: type[T],
    model: ModelInfo,
    measure: Callable[[], T],
    holds: Callable[[T], bool] | None = None,
    **how: object,
) -> T:
    """What an earlier start found if it still ``holds``, else what is measured now. ``how``: its other conditions."""
    about = (kind.__name__, _named(model), _machine(), {name: str(value) for name, value in how.items()})
    file = _directory() / f"{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(file.read_bytes(), type=kind)
        if holds is None or holds(found):
            return found
    found = measure()
    with contextlib.suppress(OSError):
        _write(file, msgspec.json.encode(found))
    return found


def _directory() -> Path:
    own = os.environ.get("DUOACTOR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(own or Path(base) / "duoactor") / "measured"


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(content)
    os.replace(fresh, file)
    files = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in files[:-MOST]:
        old.unlink(missing_ok=True)


def _named(model: ModelInfo) -> tuple[object, ...]:
    shape = (model.parameters, model.vocab_size, model.max_context)
    return (model.model_id, *shape, model.tokenizer_digest, model.device, model.dtype)


def _machine() -> tuple[object, ...]:
    """The processor and what this process may use of it."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (_processor(), os.cpu_count(), cpus, os.environ.get("OMP_NUM_THREADS", ""), _versions())


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = dict(line.partition(":")[::2] for line in lines if line)
    return " ".join(value for name, value in told.items() if name.strip() in ("model name", "flags", "Features"))


@functools.cache
def _versions() -> tuple[str, ...]:
    """Of the libraries; and of our own code by its files, since a checkout changes under one version."""
    found = []
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    files = sorted((Path(__file__).parent / "engines").rglob("*.py"))
    return (*found, *(f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in files))
