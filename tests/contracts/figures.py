"""The recorded speeds that the contracts hold the code to."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("figures.json")
TEMPERATURES = (0.0, 1.0)


def recorded() -> dict[str, dict[str, float]]:
    """Tokens per second of ``auto`` by deployment and temperature."""
    figures: dict[str, dict[str, float]] = json.loads(FILE.read_text())["auto"]
    return figures
