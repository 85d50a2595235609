"""Every kind of block against the dequantisation of the package gguf."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from actors.engines.weights.formats import KINDS, kind_name

WHOLE = ("F32", "F16", "BF16")


@pytest.mark.parametrize("number", KINDS, ids=kind_name)
def test_blocks_of_random_bytes_have_the_values_that_gguf_gives_them(number: int) -> None:
    kind = KINDS[number]
    rows = np.random.default_rng(number).integers(0, 256, (8, 512 // kind.elements * kind.bytes), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.dequantize(rows, gguf.GGMLQuantizationType(number))
        found = kind.dequantise(rows)
    assert found.dtype == np.float32 and found.shape == (8, 512)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("number", KINDS, ids=kind_name)
def test_sizes_and_names_are_those_of_gguf(number: int) -> None:
    kind, theirs = KINDS[number], gguf.GGMLQuantizationType(number)
    assert (kind.name, kind.elements, kind.bytes) == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])


def test_every_type_of_gguf_has_its_name() -> None:
    assert all(kind_name(theirs.value) == theirs.name for theirs in gguf.GGMLQuantizationType)
    assert kind_name(1234) == "number 1234"
