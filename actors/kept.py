"""A start's findings about a model on this machine, kept on disk for the next start.

A file's name is a digest of all that the findings depend on: the model, the processor and its use, the versions of the
libraries and of the code that found them. So nothing is ever invalidated, and what is lost is found out again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from actors.files import user_cache, whole_file
from actors.models import ModelInfo

T = TypeVar("T")
MOST = 256  # files; the oldest go first
MEASURED_SLOTS = 4096
LIBRARIES = ("duoactor", "torch", "transformers", "tokenizers", "numba", "triton", "numpy")


def kept(
    kind: type[T],
    model: ModelInfo,
    measure: Callable[[], T],
    **how: object,
) -> T:
    """An earlier start's result, or a new measurement. ``how``: its other conditions."""
    return _kept(kind, _about(model, how), measure)


def forget(kind: type[object], model: ModelInfo, **how: object) -> None:
    """Let the next start measure anew what :func:`kept` keeps."""
    with contextlib.suppress(OSError):
        _file(kind, _about(model, how)).unlink(missing_ok=True)


def _about(model: ModelInfo, how: Mapping[str, object]) -> object:
    return (_named(model), _machine(), {name: str(value) for name, value in how.items()})


def kept_of_machine(kind: type[T], find: Callable[[], T], **how: object) -> T:
    """An earlier start's result for this machine, or a new one."""
    return _kept(kind, (_machine(), {name: str(value) for name, value in how.items()}), find)


def bounded_slots(slots: int) -> int:
    """The size of a KV pool, or of a context that it bounds, as one of the conditions. What is measured fits in
    ``MEASURED_SLOTS``; beyond them the size follows the memory that is free, which differs at each start."""
    return min(slots, MEASURED_SLOTS)


def kept_of_files(kind: type[T], files: Iterable[Path], find: Callable[[], T]) -> T:
    """An earlier start's findings about files, while they have the same sizes and times; else what is found
    now."""
    return _kept(kind, (sorted(map(_identity, files)), _versions()), find)


def _identity(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return str(file.absolute()), stat.st_size, stat.st_mtime_ns


def _kept(kind: type[T], about: object, find: Callable[[], T]) -> T:
    file = _file(kind, about)
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(file.read_bytes(), type=kind)
    found = find()
    with contextlib.suppress(OSError):
        _write(file, msgspec.json.encode(found))
    return found


def _file(kind: type[object], about: object) -> Path:
    name = hashlib.sha256(msgspec.json.encode((kind.__name__, about))).hexdigest()[:32]
    return directory() / f"{name}.json"


def directory() -> Path:
    """This user's directory of findings."""
    own = os.environ.get("DUOACTOR_CACHE")
    return Path(own or user_cache()) / "measured"


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(file) as fresh:
        fresh.write(content)
    files = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in files[:-MOST]:
        old.unlink(missing_ok=True)


def _named(model: ModelInfo) -> tuple[object, ...]:
    shape = (model.parameters, model.vocab_size, bounded_slots(model.max_context))
    return (model.model_id, *shape, model.tokenizer_digest, model.device, model.dtype)


def _machine() -> tuple[object, ...]:
    """The processor and the CPUs that this process may use."""
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
    """Versions of the libraries, and of our own code by its files, since a checkout changes under one version."""
    found = []
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    code = sorted((Path(__file__).parent / "engines").rglob("*.py"))
    return (*found, *(" ".join(map(str, _identity(one))) for one in code))
