"""Provenance of figures: the machine (without its name), versions, models."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duoactor.bench.results import Results

INFLATED = "duoactor_inflated"  # actors.engines.weights.inflate.MARK
PACKAGES = ("duoactor", "torch", "transformers", "numpy", "msgspec", "pyzmq", "uvloop")


def machine() -> dict[str, Any]:
    """System, architecture, processor, number of CPUs, GPUs if there are any, version of Python."""
    gpus = list(_gpu_names())
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": next(_cpu_names(), platform.processor() or "unknown"),
        "cpus": os.cpu_count() or 1,
        **({"accelerator": ", ".join(gpus)} if gpus else {}),
        "python": platform.python_version(),
    }


def _cpu_names() -> Iterator[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    yield line.partition(":")[2].strip()
    except OSError:
        return


def _gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> Iterator[str]:
    """Names from NVIDIA's driver for Linux: torch would have to be imported."""
    for told in sorted(driver.glob("*/information")):
        with contextlib.suppress(OSError):
            found = re.search(r"^Model:\s*(.+?)\s*$", told.read_text(), re.MULTILINE)
            if found is not None:
                yield found[1]


def inflated(model: str) -> Any:
    """The source of an inflated model, from its ``config.json``; None: it is not inflated."""
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((Path(model) / "config.json").read_text())
        if isinstance(config, dict):
            return config.get(INFLATED)
    return None


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def load_now() -> str:
    """The machine's load before the start."""
    return f"{os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else "unknown"


def source(results: Results) -> str:
    """The line below every table and picture: the command and its machine."""
    where = results.machine
    facts = [
        f"{where.get('cpu', 'unknown processor')}, {where.get('cpus', '?')} CPUs",
        *([str(where["accelerator"])] if "accelerator" in where else []),
        *(f"{name} {results.versions[name]}" for name in ("duoactor", "torch") if name in results.versions),
    ]
    return "; ".join([results.command, *facts])
