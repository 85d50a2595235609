"""Biases that one layer of a checkpoint lacks and others have: without a bias a matrix would be another one."""

from __future__ import annotations

import re
from collections.abc import Collection

from protocols.errors import ModelError

MATRIX = re.compile(r"(\D+\d+)\.(.+)\.(weight|bias)")  # a layer, and a part of it


def check_biases(where: str, names: Collection[str]) -> None:
    """Raise ModelError if a layer has no bias for a matrix that has one in other layers. ``names``: of the tensors of a
    checkpoint."""
    found = [match for name in names if (match := MATRIX.fullmatch(name))]
    biased = {match[2] for match in found if match[3] == "bias"}
    for match in found:
        bias = f"{match[1]}.{match[2]}.bias"
        if match[2] in biased and bias not in names:
            raise ModelError(f"{where} has no tensor {bias}, which its other layers have; download it again")
