"""Where torch is not installed, what needs it is skipped, whether a test's file imports it or what the test calls.

So the rest is tried with Python versions that torch has no build for (`.ci/run`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile

import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes start; without it each compiles the product

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share that of their parent, and one compiles for all
    _directory = tempfile.TemporaryDirectory(prefix="duoactor-tests-")
    os.environ["DUOACTOR_CACHE"] = _directory.name  # what tests measure is nobody else's

NEED_TORCH = ("torch", "transformers", "safetensors", "tokenizers")


class SkipWhatNeedsTorch:
    """Finds no module, and skips what imports one of those."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in NEED_TORCH:
            pytest.skip(f"needs {name.partition('.')[0]}", allow_module_level=True)


if importlib.util.find_spec("torch") is None:
    sys.meta_path.insert(0, SkipWhatNeedsTorch())
