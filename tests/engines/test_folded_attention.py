"""Attention as CUDA graphs hold it, against attention as it runs elsewhere."""

import pytest
import torch

from actors.engines.decoder.gpu.folded_attention import FOLD, attend_folded
from actors.engines.decoder.torch.attention import attend
from tests.engines.test_llama import close

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def some_attention(heads, kv_heads, rows, span, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    query, keys, values = (
        torch.randn(n, s, 32).to(dtype) for n, s in ((heads, rows), (kv_heads, span), (kv_heads, span))
    )
    seen = torch.rand(rows, span) < 0.6
    seen[:, 0] = True
    return query * 3, keys, values, torch.where(seen, 0.0, float("-inf"))


def folded(query, keys, values, mask, scale):
    """Of one stream."""
    return attend_folded(query[None], keys[:, None], values[:, None], mask[None], scale)[0]


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("rows, span", [(1, 256), (3, 512), (8, 768), (16, 2048)])
def test_folded_attention_is_attention(heads, kv_heads, rows, span):
    given = some_attention(heads, kv_heads, rows, span)
    close(folded(*given, 32**-0.5), attend(*given, 32**-0.5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", range(1, 9))
def test_folded_attention_has_the_same_bits_whatever_is_masked_behind(blocks, dtype):
    query, keys, values, mask = some_attention(4, 2, 8, 16 * FOLD, dtype)
    mask[:, blocks * FOLD - 100 :] = float("-inf")
    expected = folded(query, keys[:, : blocks * FOLD], values[:, : blocks * FOLD], mask[:, : blocks * FOLD], 0.2)
    for more in (blocks + 1, blocks + 2, 2 * blocks, 16):
        span = more * FOLD
        assert torch.equal(folded(query, keys[:, :span], values[:, :span], mask[:, :span], 0.2), expected), more


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2)])
def test_streams_do_not_see_each_other(heads, kv_heads):
    alone = [some_attention(heads, kv_heads, 4, 512, seed=seed) for seed in range(3)]
    query, keys, values, mask = zip(*alone, strict=True)
    together = attend_folded(torch.stack(query), torch.stack(keys, 1), torch.stack(values, 1), torch.stack(mask), 0.2)
    for seen, given in zip(together, alone, strict=True):
        close(seen, folded(*given, 0.2))
