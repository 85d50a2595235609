"""What the numpy decoder folds into its weights, against transformers' own forward."""

import numpy as np
import pytest
import torch

from actors.engines.decoder import engine as fused
from actors.engines.decoder.cpu import numpy_body
from actors.engines.decoder.cpu.numpy_body import ANY, NumpyBody, Product
from actors.engines.decoder.engine import LlamaEngine
from actors.engines.flat_batch import FlatBatch
from actors.engines.weights.half import has_half
from actors.engines.weights.layers import Matrix
from tests.engines.tiny import VOCAB, info, make


@pytest.fixture(autouse=True)
def without_numba(monkeypatch):
    monkeypatch.setattr(fused, "compiled_kernels", lambda: None)


def random_model(family: str, halves: bool = False) -> torch.nn.Module:
    """Norms and biases too, which are ones and zeros in a fresh model."""
    model = make(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.5)
            if halves:
                parameter.copy_(parameter.bfloat16())
    return model


def steps_agree(family: str, halves: bool) -> LlamaEngine:
    tokens = torch.randint(2, VOCAB, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    model = random_model(family, halves)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    engine = LlamaEngine(model, info(model), 64, exact=False)
    assert isinstance(engine._body, NumpyBody)
    for start, rows in ((0, 17), (17, 1), (18, 4), (22, 8)):
        places = range(start, start + rows)
        visible = np.arange(64) <= np.arange(start, start + rows)[:, None]
        batch = FlatBatch()
        batch.add(0, tokens[start : start + rows], places, places, visible)
        out = engine.forward(batch)
        torch.testing.assert_close(out, expected[start : start + rows], atol=1e-4, rtol=1e-4)
    return engine


@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2", "qwen3"])
def test_norms_biases_and_scales_may_be_folded_into_the_weights(family):
    steps_agree(family, halves=False)


@pytest.mark.skipif(not has_half(), reason="no float16 kernels on this processor")
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_packed_kernels_agree_with_a_norm_that_is_not_folded(family, monkeypatch):
    monkeypatch.setattr(numpy_body, "CACHED", 0)  # every matrix that can be packed is
    engine = steps_agree(family, halves=True)
    assert engine._body.head.packed_to == ANY and engine._body.head.table.size == 0


@pytest.mark.skipif(not has_half(), reason="no float16 kernels on this processor")
@pytest.mark.parametrize("packed", [True, False])
def test_either_kernel_of_a_product_gives_the_same_rows(packed, monkeypatch):
    monkeypatch.setattr(numpy_body, "quicker", lambda one, other: packed)
    chance = torch.Generator().manual_seed(0)
    weight, bias, norm = (torch.randn(shape, generator=chance).bfloat16().float() for shape in ((48, 32), (48,), (32,)))
    product = Product(Matrix(weight, bias), norm, int8=False, cached=True)
    assert (product.packed_from, product.packed_to) == ((1, ANY) if packed else (0, 0))
    x = torch.randn(3, 32, generator=chance)
    torch.testing.assert_close(torch.from_numpy(product(x.numpy())), (x * norm) @ weight.t() + bias)
