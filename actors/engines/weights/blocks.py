"""A matrix of weights in small groups of integers, as files have them. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.formats import FORMS, GPU_FORMS, Codes, Floats


class Grouped(Protocol):
    """A matrix of at least ``PANEL`` rows in small integers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def form(self) -> int:
        """Number of its form, see :class:`Codes`."""
        ...

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """Those rows."""
        ...


@dataclass(slots=True)
class Blocks:
    """A matrix of parts one below the other, each with those of its rows that it has, in their order, or None."""

    parts: list[tuple[Grouped, NDArray[np.int64] | None]]

    @classmethod
    def joined(cls, matrices: list[Blocks]) -> Blocks:
        """One below the other."""
        return cls([part for matrix in matrices for part in matrix.parts])

    @property
    def shape(self) -> tuple[int, int]:
        return sum(_count(*part) for part in self.parts), self.parts[0][0].shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of them in panels."""
        return sum(int(_count(*part) * part[0].shape[1] * FORMS[part[0].form - 1].weight) for part in self.parts)

    @property
    def nbytes_on_gpu(self) -> int:
        """The same as a GPU reads them."""
        forms = (GPU_FORMS[part.form - 1] for part, _ in self.parts)
        rows = zip(forms, self.parts, strict=True)
        return sum(int(_count(*part) * form.output_on_gpu(part[0].shape[1])) for form, part in rows)

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU reads them, too."""
        return all(part.form <= len(FORMS) for part, _ in self.parts)

    @property
    def in_float8(self) -> bool:
        return GPU_FORMS[self.parts[0][0].form - 1].float8 is not None

    def in_order(self, order: NDArray[np.int64]) -> Blocks:
        """With the rows in that order, in which at least ``PANEL`` of a part stay together."""
        firsts = np.cumsum([0, *(_count(*part) for part in self.parts)])
        owners = np.searchsorted(firsts, order, side="right") - 1
        parts: list[tuple[Grouped, NDArray[np.int64] | None]] = []
        for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(owners)) + 1):
            part, before = self.parts[owners[run[0]]]
            own = order[run] - firsts[owners[run[0]]]
            parts.append((part, own if before is None else before[own]))
        return Blocks(parts)

    def values(self) -> Floats:
        """Its numbers."""
        each = ((part, np.arange(part.shape[0]) if order is None else order) for part, order in self.parts)
        return np.concatenate([part.codes(rows).values() for part, rows in each])


def _count(part: Grouped, rows: NDArray[np.int64] | None) -> int:
    return part.shape[0] if rows is None else len(rows)
