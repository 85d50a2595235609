"""The forms of weights in small groups: how a group's numbers are coded in 4 to 8 bits, and lie in memory.

A panel is ``PANEL`` outputs whose groups of ``GROUP`` inputs lie one behind the other; within a group a word of 32 bits
has the weights of one output for four inputs, a quad.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP, PANEL = 32, 16
SUPER = 256 // GROUP  # groups that share the steps of their scales
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers


@dataclass(frozen=True, slots=True)
class Form:
    """How a group of a panel lies in memory: scales, minima, then words of each output.

    ``scaled`` groups have scales of 8 bits times steps of float16 that ``SUPER`` groups share, which lie before them;
    others one float16. Of ``halves`` each 16 inputs have a scale. A weight is ``scale * (code - offset) + minimum``, or
    with a ``table`` of 16 numbers ``scale * table[code]``.
    """

    bits: int
    offset: int = 0  # a power of two, or 0
    minima: bool = False
    scaled: bool = False
    halves: bool = False
    table: tuple[int, ...] = ()

    @property
    def wide(self) -> int:
        """Bits of what is multiplied: codes, or numbers of the table and the offset."""
        return (max(self.table) + self.offset).bit_length() if self.table else self.bits

    @property
    def steps(self) -> int:
        """Bytes before ``SUPER`` groups."""
        return 2 * PANEL * (1 + self.minima) if self.scaled else 0

    @property
    def scales(self) -> int:
        """Bytes before the codes of a group."""
        return PANEL * ((2 if self.halves else 1) + self.minima) if self.scaled else 2 * PANEL * (1 + self.minima)

    @property
    def group(self) -> int:
        """Bytes of a group."""
        return self.scales + PANEL * GROUP * self.bits // 8

    @property
    def weight(self) -> float:
        """Bytes of a weight, scales included."""
        return (self.group + self.steps / SUPER) / (PANEL * GROUP)

    def bytes_of(self, groups: int) -> int:
        """Bytes of a panel."""
        return groups * self.group + (groups // SUPER * self.steps if self.scaled else 0)


FORMS = (
    Form(4, 8),  # Q4_0
    Form(4, 0, minima=True),  # Q4_1
    Form(5, 16),  # Q5_0
    Form(5, 0, minima=True),  # Q5_1
    Form(8, 128),  # Q8_0
    Form(4, 0, minima=True, scaled=True),  # Q4_K
    Form(5, 0, minima=True, scaled=True),  # Q5_K
    Form(6, 32, scaled=True, halves=True),  # Q6_K
    Form(4, 128, scaled=True, table=IQ4),  # IQ4_XS
    Form(4, 128, table=IQ4),  # IQ4_NL
    Form(4, 16, table=E2M1),  # MXFP4
)
MXFP4 = len(FORMS)  # its number: forms are counted from 1
