import pytest
import torch
from torch import nn

from actors.engines.generic.engine import TransformersEngine
from actors.engines.generic.linears import (
    PackedLinear,
    PanelLinear,
    can_pack,
    make_linear,
    pack_linears,
    quickest_linear,
)
from actors.engines.weights.rows import FixedRows
from tests.engines.test_transformers_backend import run
from tests.engines.tiny import info, make

PACKABLE = [dtype for dtype in (torch.float32, torch.bfloat16) if can_pack(dtype)]


@pytest.mark.parametrize("dtype", PACKABLE)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_agrees_with_the_plain_one_and_with_itself_for_every_number_of_rows(dtype, bias):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = nn.Linear(1536, 72, bias=bias).to(dtype)  # oneDNN splits as many inputs by the number of rows
    packed = PackedLinear(plain.weight, plain.bias)
    x = torch.randn(1, 130, 1536).to(dtype)
    with torch.inference_mode():
        whole = packed(x)
        assert whole.shape == (1, 130, 72) and whole.dtype == dtype
        torch.testing.assert_close(whole, plain(x))
        for rows in (*range(1, 40), 64, 96, 128):
            assert torch.equal(packed(x[:, :rows].contiguous()), whole[:, :rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs", [72, 2])
def test_products_of_a_models_own_code_agree_for_every_number_of_rows(dtype, outputs):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weight, bias, x = (torch.randn(*shape).to(dtype) for shape in ((outputs, 768), (outputs,), (70, 768)))
    products = [
        lambda x: nn.functional.linear(x, weight, bias),
        lambda x: torch.addmm(bias, x, weight.t()),
        lambda x: x @ weight.t(),
        lambda x: torch.matmul(x[None], weight.t())[0],
    ]
    with torch.inference_mode():
        for product in products:
            torch.testing.assert_close(product(x), by_fixed_rows(product, x), rtol=0.05, atol=0.2)
            whole = by_fixed_rows(product, x)
            for rows in (1, 2, 5, 8, 9, 16, 33, 64):
                assert torch.equal(by_fixed_rows(product, x[3 : 3 + rows]), whole[3 : 3 + rows]), rows


def by_fixed_rows(product, x):
    with FixedRows():
        return product(x)


def test_a_layer_of_transformers_is_read_in_panels_by_one_thread():
    torch.set_num_threads(1)
    plain = nn.Linear(48, 72)
    layer = quickest_linear(plain.weight, plain.bias, int8=False)
    assert isinstance(layer, PanelLinear)
    x = torch.randn(2, 5, 48)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), plain(x))


def test_packing_keeps_the_embedding_table_of_a_tied_model_and_no_other_float_weights():
    model = make("llama-tied")
    linears = sum(isinstance(m, nn.Linear) for m in model.modules())
    expected = linears if PACKABLE else 0
    assert pack_linears(model) == expected
    if expected:
        assert not any(isinstance(m, nn.Linear) for m in model.modules())
        matrices = [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
        assert matrices == ["model.embed_tokens.weight"]


def test_layers_elsewhere_than_on_the_cpu_stay_as_they_are():
    assert make_linear(torch.zeros(4, 4, device="meta"), None) is None
    with torch.device("meta"):
        model = make("llama")
    assert pack_linears(model) == 0


def test_an_int8_engine_still_speaks_the_models_language():
    tokens = torch.randint(2, 160, (12,), generator=torch.Generator().manual_seed(3)).tolist()
    model = make("llama-tied")
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    engine = TransformersEngine(model, info(model), 64, int8=True)
    out = run(engine, tokens, range(12), range(12), [range(i + 1) for i in range(12)])
    assert out.dtype == torch.float32
    assert (out - expected).norm() < 0.1 * expected.norm()
