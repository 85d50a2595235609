"""Weights in panels against the plain product."""

import pytest
import torch

from actors.engines.backends.llama.compiled_body import compiled_kernels
from actors.engines.backends.llama.panels import Panels
from actors.engines.backends.llama.weights import Matrix


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("outputs", [64, 72, 128, 192])
def test_panels_give_the_plain_product_and_every_row_its_own_bits(outputs, behind, bias, halves):
    chance = torch.Generator().manual_seed(0)
    weight, shift = torch.randn(outputs, 48, generator=chance), torch.randn(outputs, generator=chance)
    if halves:
        weight = weight.bfloat16().float()
    panels = Panels(Matrix(weight, shift if bias else None), compiled_kernels(), behind)
    assert (panels.scale != 1.0) is halves, "sixteen bits are read as float16, scaled"
    x = torch.randn(11, 48, generator=chance)
    given = x if behind else x * panels.scale
    whole = panels.multiply(given.numpy())
    found = torch.from_numpy(whole) * (panels.scale if behind else 1.0)
    torch.testing.assert_close(found, x @ weight.t() + (shift if bias else 0))
    for rows in range(1, 11):
        assert (panels.multiply(given[:rows].numpy()) == whole[:rows]).all(), rows
