"""The machine that figures come from, without its name."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import Any


def machine() -> dict[str, Any]:
    """System, architecture, processor, number of CPUs, version of Python."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": next(_cpu_names(), platform.processor() or "unknown"),
        "cpus": os.cpu_count() or 1,
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
