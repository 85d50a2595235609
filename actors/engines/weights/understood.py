"""What a checkpoint's weights are taken for, layer by layer, before a number of them is read. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, groupby
from pathlib import Path

from actors.engines.weights.faults import PLAIN, quantisation_of, tensors_of
from actors.engines.weights.gguf import GGUF

NUMBERED = re.compile(r"^(.*?\.)(\d+)\.(.+)$")  # the layers, a layer's number, a part of it
Key = tuple[str, frozenset[int]]  # how parts are stored, and in which layers


def understood(place: str) -> list[str]:
    """One line for each kind of parts of a model directory or GGUF file, those of equal layers joined; [] for a hub id
    that is not on this machine. Vectors, such as norms and biases, are left out. Raises ModelError."""
    path = Path(place)
    if path.suffix == ".gguf" and path.is_file():
        return [*joined({name: one.kind.name for name, one in GGUF(path).tensors.items() if len(one.shape) > 1})]
    return [*joined(_stored(path))] if path.is_dir() else []


def _stored(path: Path) -> dict[str, str]:
    """How each matrix of a directory is stored, by its layer's name."""
    scheme, layers = quantisation_of(path), dict[str, dict[str, tuple[str, int]]]()
    for name, entry in tensors_of(path).items():
        layer, inside, part = name.partition(".weight.")  # bitsandbytes appends names of parts to a weight's name
        if not inside:
            layer, _, part = name.rpartition(".")
        layers.setdefault(layer, {})[part] = str(entry.get("dtype")), len(entry.get("shape") or ())
    found = {}
    for layer, parts in layers.items():
        kinds = {kind for part, (kind, dimensions) in parts.items() if dimensions > 1}
        plain = not parts.keys() - {"weight", "bias"} and kinds <= PLAIN
        if not plain and scheme is not None and (form := scheme.form(layer)) is not None:
            found[f"{layer}.weight"] = str(form)
        elif kinds:
            found[f"{layer}.weight"] = ", ".join(sorted(kinds))
    return found


def joined(stored: Mapping[str, str]) -> Iterator[str]:
    """``stored``: by tensor's name."""
    numbers: dict[tuple[str, str, str], set[int]] = {}
    for name, kind in stored.items():
        match = NUMBERED.match(name.removesuffix(".weight"))
        before, number, part = match.groups() if match else ("", "", name.removesuffix(".weight"))
        numbers.setdefault((before, part, kind), set()).update([int(number)] if number else [])
    alike: dict[tuple[str, Key], list[str]] = {}
    for (before, part, kind), layers in numbers.items():
        alike.setdefault((before, (kind, frozenset(layers))), []).append(part)
    for (before, (kind, among)), names in alike.items():
        where = f"{before}{_ranges(among)}: " if among else ""
        yield f"{where}{', '.join(names)}: {kind}"


def _ranges(numbers: Iterable[int]) -> str:
    """Such as 0-3,5."""
    steps = count()
    runs = [[*run] for _, run in groupby(sorted(numbers), lambda number: number - next(steps))]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
