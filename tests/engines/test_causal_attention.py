"""A prompt's attention without a mask is attention with one."""

import pytest
import torch

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.compute.sight import CausalAttention
from actors.engines.decoder.torch import attention
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.flat_batch import Segment, causal


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("start, rows", [(0, 1), (0, 80), (128, 100), (250, 3)])
def test_rows_see_the_text_up_to_themselves(start, rows, heads, kv_heads):
    chance = torch.Generator().manual_seed(start)
    pool = KVPool(KVShape.alike(2, kv_heads, 16), 600, torch.float32, "cpu")
    pool.parts[0].copy_(torch.randn(pool.parts[0].shape, generator=chance))
    queries = torch.randn(rows, heads, 16, generator=chance)
    visible = causal(start, start + rows)
    segment = Segment(rows, 100, visible.shape[1], visible, prompt=True)
    mask = torch.zeros(visible.shape).masked_fill(~torch.from_numpy(visible), float("-inf"))
    expected = PoolAttention(pool, [Stretch(100, visible.shape[1], mask)], (heads, kv_heads), 0.25)(1, queries)
    torch.testing.assert_close(CausalAttention(pool, segment)(1, queries, 0.25), expected)


@pytest.mark.parametrize("start", [0, 128])
def test_kernels_of_a_gpu_may_lay_out_what_rows_see_by_rows(start, monkeypatch):
    """Those that take a mask do: the heads that share keys are then not side by side with those of other keys."""
    plain = attention.functional.scaled_dot_product_attention

    def by_rows(*args, **kwargs):
        return plain(*args, **kwargs).transpose(1, 2).contiguous().transpose(1, 2)

    given = start, 100, 6, 2
    test_rows_see_the_text_up_to_themselves(*given)
    monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", by_rows)
    test_rows_see_the_text_up_to_themselves(*given)
