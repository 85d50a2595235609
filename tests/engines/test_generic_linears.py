import pytest
import torch
from torch import nn

from actors.engines.decoder.cpu.engine import Threads
from actors.engines.generic.slots import PanelLinear, use_panels
from actors.engines.weights.rows import FixedRows
from tests.engines.tiny import make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_in_panels_agrees_with_the_plain_one_and_with_itself_for_every_number_of_rows(dtype, bias):
    torch.manual_seed(0)
    plain = nn.Linear(1536, 72, bias=bias).to(dtype)
    panels = PanelLinear(plain.weight, plain.bias, Threads.as_torchs().team)
    x = torch.randn(1, 130, 1536).to(dtype)
    with torch.inference_mode():
        whole = panels(x)
        assert whole.shape == (1, 130, 72) and whole.dtype == dtype
        torch.testing.assert_close(whole, plain(x))
        for rows in (*range(1, 40), 64, 96, 128):
            assert torch.equal(panels(x[:, :rows].contiguous()), whole[:, :rows]), rows


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


def test_panels_keep_the_embedding_table_of_a_tied_model_and_no_other_float_weights():
    model = make("llama-tied")
    use_panels(model, Threads.as_torchs().team)
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
    assert matrices == ["model.embed_tokens.weight"]
