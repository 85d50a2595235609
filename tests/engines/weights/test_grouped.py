"""Products with a file's blocks: exact sums of rounded inputs, and a row's bits are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.formats import KINDS
from actors.engines.weights.gguf import Stored
from actors.engines.weights.matrix import Matrix

pytest.importorskip("numba")
HALVES = {"Q6_K": (208,), "Q3_K": (108,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
INPUTS = 512
CODES = [kind.name for kind in KINDS.values() if kind.form]


@pytest.fixture(scope="module")
def team() -> Any:
    made = compiled_kernels().Team(1)
    made.make_room(64 * INPUTS)
    return made


def stored(name: str, rows: int, seed: int = 0) -> Stored:
    chance = np.random.default_rng(seed)
    kind = next(kind for kind in KINDS.values() if kind.name == name)
    data = chance.integers(0, 256, (rows * INPUTS // kind.elements, kind.bytes), dtype=np.uint8)
    for place in HALVES.get(name, (0,)):
        data[:, place : place + 2] = chance.uniform(-0.02, 0.02, (len(data), 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        data[:, 0] = chance.integers(110, 126, len(data))
    return Stored(name, (rows, INPUTS), kind, data.reshape(-1))


def rounded(x: np.ndarray) -> np.ndarray:
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(2, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.maximum(largest, np.float32(1e-30)), np.float32(0))
    return (np.rint(groups * inverse) * (largest / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("name", CODES)
def test_a_product_is_that_of_the_values_and_inputs_rounded_by_groups(name: str, team: Any) -> None:
    matrix = stored(name, 100)
    x = np.random.default_rng(1).standard_normal((9, INPUTS), dtype=np.float32)
    panels = Panels(Matrix.of_blocks(Blocks([(matrix, None)])), team)
    found = panels.multiply(x)
    expected = rounded(x).astype(np.float64) @ matrix.values().T.astype(np.float64)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert np.abs(found - x @ matrix.values().T).max() < 0.02 * np.abs(expected).max()


def test_a_rows_bits_are_its_own(team: Any) -> None:
    x = np.random.default_rng(2).standard_normal((33, INPUTS), dtype=np.float32)
    for name in CODES:
        panels = Panels(Matrix.of_blocks(Blocks([(stored(name, 64), None)])), team)
        whole = panels.multiply(x)
        for rows in (1, 2, 3, 5, 8, 13):
            np.testing.assert_array_equal(panels.multiply(x[7 : 7 + rows]), whole[7 : 7 + rows])


def test_parts_in_several_formats_are_one_product(team: Any) -> None:
    parts = [stored("Q5_0", 192, 3), stored("Q4_K", 48, 4), stored("Q8_0", 53, 5)]
    order = np.random.default_rng(6).permutation(192)
    bias = torch.randn(293)
    blocks = Blocks([(part, None if at else order) for at, part in enumerate(parts)])
    x = np.random.default_rng(7).standard_normal((3, INPUTS), dtype=np.float32)
    found = Panels(Matrix.of_blocks(blocks, bias), team).multiply(x)
    weights = np.concatenate([parts[0].values()[order], parts[1].values(), parts[2].values()])
    np.testing.assert_array_equal(blocks.values(), weights)
    expected = rounded(x).astype(np.float64) @ weights.T.astype(np.float64) + bias.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_inputs_of_zeros_and_of_one_large_number_are_exact(team: Any) -> None:
    matrix = stored("Q4_0", 32)
    x = np.zeros((2, INPUTS), np.float32)
    x[1, 77] = 1000.0
    found = Panels(Matrix.of_blocks(Blocks([(matrix, None)])), team).multiply(x)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], 1000 * matrix.values()[:, 77], rtol=1e-6)


def test_an_order_of_all_rows_is_one_of_each_parts() -> None:
    parts = [stored("Q8_0", 32, 8), stored("Q4_0", 16, 9)]
    order = np.concatenate([np.arange(32)[::-1], 32 + np.arange(16)[::-1]])
    blocks = Blocks([(part, None) for part in parts]).in_order(order).in_order(order)
    np.testing.assert_array_equal(blocks.values(), Blocks([(part, None) for part in parts]).values())


def test_narrow_matrices_and_other_kinds_have_no_form() -> None:
    found = [stored(kind, rows).is_grouped() for kind, rows in (("Q4_0", 16), ("Q4_0", 15), ("Q2_K", 16), ("BF16", 16))]
    assert found == [True, False, False, False]
