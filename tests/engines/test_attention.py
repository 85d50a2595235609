import pytest
import torch

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.decoder.torch.attention import MAX_ROUND, PoolAttention, Stretch
from actors.engines.flat_batch import align


def attend(query, keys, values, mask, scale, softcap=None):
    """``(heads, rows, width)`` like the query, over a pool with these keys and values ``(kv_heads, span, width)``."""
    pool = KVPool(KVShape.alike(1, len(keys), keys.shape[2]), keys.shape[1], keys.dtype, "cpu")
    pool.keys[0].copy_(keys)
    pool.values[0].copy_(values)
    made = PoolAttention(pool, [Stretch(0, keys.shape[1], mask)], (len(query), len(keys)), scale, softcap)
    return made(0, query.transpose(0, 1)).view(-1, len(query), query.shape[2]).transpose(0, 1)


def visible_rows(length: int, rows: int, span: int, dtype) -> torch.Tensor:
    """Row r sees slots 0 .. length + r."""
    mask = torch.full((rows, span), -torch.inf)
    for r in range(rows):
        mask[r, : length + r + 1] = 0
    return mask.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(6, 6, 64), (4, 4, 32), (8, 2, 64)])
def test_a_rows_bits_depend_neither_on_the_rows_beside_it_nor_on_the_span(dtype, heads, kv_heads, width):
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(0)
    keys = torch.randn(kv_heads, 2048, width, generator=chance).to(dtype)
    values = torch.randn(kv_heads, 2048, width, generator=chance).to(dtype)
    queries = torch.randn(heads, 16, width, generator=chance).to(dtype)
    for length in (*range(1, 700, 37), 1000, 1023, 1500):
        wide = align(length + 16)
        whole = attend(queries, keys[:, :wide], values[:, :wide], visible_rows(length, 16, wide, dtype), 0.125)
        for rows in (1, 2, 3, 4, 6, 8, 12):
            for span in (align(length + rows), wide + 64, wide + 192):
                mask = visible_rows(length, rows, span, dtype)
                some = attend(queries[:, :rows], keys[:, :span], values[:, :span], mask, 0.125)
                assert torch.equal(some, whole[:, :rows]), (length, rows, span)


def test_attend_is_softmax_attention():
    torch.manual_seed(1)
    q, k, v = torch.randn(8, 5, 32), torch.randn(2, 320, 32), torch.randn(2, 320, 32)
    mask = visible_rows(290, 5, 320, torch.float32)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(4, 0), v.repeat_interleave(4, 0), attn_mask=mask, scale=0.2
    )
    torch.testing.assert_close(attend(q, k, v, mask, 0.2), expected)
    capped = attend(q, k, v, mask, 0.2, softcap=5.0)
    scores = 5.0 * torch.tanh(0.2 * q @ k.repeat_interleave(4, 0).transpose(1, 2) / 5.0) + mask
    torch.testing.assert_close(capped, scores.softmax(-1) @ v.repeat_interleave(4, 0))


@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("rows", [MAX_ROUND, MAX_ROUND + 1, 256])
def test_chunks_of_a_prompt_get_the_same_attention_as_rounds(rows, kv_heads):
    chance = torch.Generator().manual_seed(2)
    q = torch.randn(8, rows, 32, generator=chance)
    k, v = (torch.randn(kv_heads, 576, 32, generator=chance) for _ in range(2))
    mask = visible_rows(300, rows, 576, torch.float32)
    whole = attend(q, k, v, mask, 0.2)
    for start in range(0, rows, 16):
        part = attend(q[:, start : start + 16], k, v, mask[start : start + 16], 0.2)
        torch.testing.assert_close(whole[:, start : start + 16], part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (8, 2)])
def test_requests_of_any_rows_and_spans_in_one_call_get_the_bits_that_each_gets_alone(dtype, heads, kv_heads):
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(3)
    pool = KVPool(KVShape.alike(2, kv_heads, 64), 4096, dtype, "cpu")
    pool.parts[0].copy_(torch.randn(pool.parts[0].shape, generator=chance))
    requests = [
        (0, 130, 1),
        (256, 70, 1),
        (512, 180, 1),
        (1024, 600, 9),
        (2048, 61, 1),
        (2240, 500, 33),
        (3008, 150, 1),
    ]
    stretches = [
        Stretch(base, align(length + rows), visible_rows(length, rows, align(length + rows), dtype))
        for base, length, rows in requests
    ]
    queries = torch.randn(sum(rows for _, _, rows in requests), heads, 64, generator=chance).to(dtype)
    for layer in range(2):
        together = PoolAttention(pool, stretches, (heads, kv_heads), 0.125)(layer, queries)
        start = 0
        for stretch in stretches:
            end = start + len(stretch.mask)
            alone = PoolAttention(pool, [stretch], (heads, kv_heads), 0.125)(layer, queries[start:end])
            assert torch.equal(together[start:end], alone)
            start = end
