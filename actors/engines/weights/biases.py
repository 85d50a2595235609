"""Biases that one layer of a checkpoint lacks and others have: without a bias a matrix would be another one."""

from __future__ import annotations

import re
from collections.abc import Collection

from actors.engines.weights.unneeded import unneeded
from protocols.errors import ModelError

MATRIX = re.compile(r"(\D+)(\d+)\.(.+)\.(weight|bias)")  # a tower, the number of its layer, and a part of that
LEFT_OUT = unneeded()


def check_biases(where: str, names: Collection[str]) -> None:
    """Raise ModelError if a layer has no bias for a matrix that has one in other layers of its tower. ``names``: of the
    tensors of a checkpoint; what a text model does without is not asked."""
    found = [match for name in names if (match := MATRIX.fullmatch(name)) and not LEFT_OUT.fullmatch(name)]
    biased = {match.group(1, 3) for match in found if match[4] == "bias"}
    for match in found:
        bias = f"{match[1]}{match[2]}.{match[3]}.bias"
        if match.group(1, 3) in biased and bias not in names:
            raise ModelError(f"{where} has no tensor {bias}, which its other layers have; download it again")
