"""Our Triton kernels in Triton's interpreter, which a process of its own has from its beginning (see
test_triton_attention.py), with numbers that can be checked."""

import functools
import importlib
import inspect
import random
import re
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from triton.language.core import is_builtin
from triton.runtime import interpreter

from actors.engines.compute.layer import Program
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.ops_triton import Kernels, TritonOps, error_of, gpu_program, recordable
from actors.engines.decoder import layout
from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.gpu import graphs as graphs_module
from actors.engines.decoder.gpu import in_place as in_place_module
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import Direct, Graphs
from actors.engines.decoder.gpu.groups import Float8Matrix, GroupedMatrix, rounded, send
from actors.engines.decoder.gpu.in_place import InPlace, in_place
from actors.engines.decoder.gpu.triton_kernels import attention as kernels
from actors.engines.decoder.gpu.triton_kernels import (
    between,
    choice,
    experts,
    float8,
    gpu,
    groups,
    linear,
    prompts,
    states,
)
from actors.engines.decoder.spec import Attention, Norm
from actors.engines.drafts.draft import Draft
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.sampling import sampler
from actors.engines.weights import quantised
from actors.engines.weights.blocks import Blocks, Grouped
from actors.engines.weights.formats import KINDS
from actors.engines.weights.gguf import Stored
from actors.engines.weights.gguf_loading import GGUFFile
from actors.engines.weights.matrix import Matrix
from actors.engines.weights.quantisation import LayerForm
from actors.engines.weights.source import ModuleSource
from actors.models import Leaf
from actors.noise import keys
from protocols.messages import Sampling
from tests.engines.families import every_part, model_of
from tests.engines.recorded_rounds import TEXTS, fill, lay_out, some_trees, together, tree_round
from tests.engines.tape import Tape, TapeRecorder
from tests.engines.test_graphs import Operations
from tests.engines.test_groups import cut_off
from tests.engines.test_llama import close
from tests.engines.tiny import COMMON, VOCAB, info, make
from tests.engines.weights.test_gguf_serving import mixed
from tests.engines.weights.test_grouped import CODES, INPUTS, stored


def dot_in_one_order(_builder, a, b, start, _precision, _imprecise) -> interpreter.TensorHandle:
    """A tile's product, each row added up in the same order wherever in the tile it lies, as is assumed of a
    GPU's. The interpreter leaves it to NumPy's BLAS, of which some do not (OpenBLAS's for Haswell and Zen)."""
    dtype = start.data.dtype
    if dtype.kind == "i":  # exact in any order
        return interpreter.TensorHandle(a.data.astype(dtype) @ b.data.astype(dtype) + start.data, start.dtype.scalar)
    one, other = (wide(each).data.astype(dtype) for each in (a, b))
    return interpreter.TensorHandle((one[..., None] * other[..., None, :, :]).sum(-2) + start.data, start.dtype.scalar)


def wide(given: interpreter.TensorHandle) -> interpreter.TensorHandle:
    """Numbers of bfloat16, which the interpreter keeps as their bits, as NumPy's."""
    if not given.dtype.scalar.is_bf16():
        return given
    return interpreter.TensorHandle((given.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def narrow(floats: np.ndarray) -> interpreter.TensorHandle:
    """To the nearest of bfloat16."""
    bits = np.asarray(floats, np.float32).view(np.uint32)
    return interpreter.TensorHandle((bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16), tl.bfloat16)


def cast(builder, given, kind) -> interpreter.TensorHandle:
    return narrow(given.data) if kind.scalar.is_bf16() else CAST(builder, wide(given), kind)


def by_numpy(builder, one, other, operation) -> interpreter.TensorHandle:
    found = BINARY(builder, wide(one), wide(other), operation)
    return narrow(found.data) if one.dtype.scalar.is_bf16() else found


def fused(_builder, one, other, summand) -> interpreter.TensorHandle:
    """A product and a sum that are rounded once."""
    exact = one.data.astype(np.float64) * other.data + summand.data
    return interpreter.TensorHandle(exact.astype(np.float32), one.dtype.scalar)


def permuted(words: np.ndarray, others: np.ndarray, selectors: np.ndarray) -> np.ndarray:
    """PTX's prmt: each nibble of a selector picks one of eight bytes, or with its highest bit the sign of one."""
    words, others, selectors = np.broadcast_arrays(words, others, selectors)
    both = np.stack([words, others], -1).view(np.uint8)
    nibbles = selectors[..., None] >> np.arange(0, 16, 4) & 15
    found = np.take_along_axis(both, nibbles & 7, -1)
    return np.where(nibbles & 8, 255 * (found >> 7), found).astype(np.uint8).view(np.uint32)[..., 0]


def by_halves(words: np.ndarray, others: np.ndarray) -> np.ndarray:
    one, other = (each.copy()[..., None].view(np.float16) for each in np.broadcast_arrays(words, others))
    return (one - other).view(np.uint32)[..., 0]


def dp4a(words: np.ndarray, others: np.ndarray, totals: np.ndarray) -> np.ndarray:
    one, other = (each[..., None].view(np.int8).astype(np.int32) for each in (words, others))
    return totals + (one * other).sum(-1, dtype=np.int32).view(np.uint32)


MEANINGS = {
    "xor.b32": np.bitwise_xor,
    "shr.u32": np.right_shift,
    "prmt.b32": permuted,
    "dp4a.s32.s32": dp4a,
    "mov.b32": lambda words: words,
    "mul.rn.f32": lambda words, others: (words.view(np.float32) * others.view(np.float32)).view(np.uint32),
    "sub.f16x2": by_halves,
    "cvt.f32.f16": lambda words: words.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32),
}


def assembled(_builder, text, _constraints, args, types, _is_pure, pack) -> SimpleNamespace:
    """What an assembler's instructions make of 32-bit words, one at a time: which stand together in a thread is the
    compiler's choice."""
    assert pack == 1
    values = {f"${len(types) + at}": each.data.view(np.uint32) for at, each in enumerate(args)}
    for operation, given in re.findall(r"([\w.]+\.(?:[bsuf]32|f32\.f16|f16x2)) ([^;]+);", text):
        if parted := re.fullmatch(r"\{(\w+), (\w+)\}, (\S+)", given):
            low, high, word = parted.groups()
            values[low], values[high] = values[word] & 0xFFFF, values[word] >> 16
        elif operation in MEANINGS:  # not a declaration
            to, *read = given.split(", ")
            words = (values[one] if one in values else np.uint32(int(one, 0)) for one in read)
            values[to] = MEANINGS[operation](*words)
    made = []
    for at, kind in enumerate(types):
        dtype = np.float32 if kind.scalar.is_fp32() else np.int32
        made.append(interpreter.TensorHandle(values[f"${at}"].view(dtype), kind.scalar))
    return SimpleNamespace(get_result=made.__getitem__)


def by_torch(name: str):
    """A function of libdevice by torch's of the same name, as its own kernels for a GPU take it."""
    by = getattr(torch, name)

    def made(given):
        found = by(torch.from_numpy(np.ascontiguousarray(given.handle.data)))
        return tl.tensor(interpreter.TensorHandle(found.numpy(), tl.float32), given.type)

    return made


CAST, BINARY = interpreter.InterpreterBuilder.cast_impl, interpreter.InterpreterBuilder.binary_op
PATCHED: set[object] = set()


def patch_builtins(module: object, builder: object, _scope: object) -> None:
    """Patch a module's builtins once for all: the interpreter's own does it anew at every launch."""
    if module not in PATCHED:
        PATCHED.add(module)
        for name, member in inspect.getmembers(module, is_builtin):
            interpreter._patch_attr(module, name, member, builder, interpreter._LangPatchScope())


numpys = functools.cache(interpreter._get_np_dtype)  # it makes a table of all kinds at every call


def np_dtype(dtype: object) -> np.dtype:
    return np.dtype(np.uint64) if dtype.scalar.is_ptr() else numpys(dtype.scalar)


interpreter.InterpreterBuilder.create_dot = dot_in_one_order
interpreter.InterpreterBuilder.create_inline_asm = assembled
interpreter.InterpreterBuilder.create_fma = fused
interpreter.InterpreterBuilder.cast_impl = cast
interpreter.InterpreterBuilder.binary_op = by_numpy
interpreter.InterpreterBuilder.get_bf16 = lambda _builder, value: narrow([value])
choice.libdevice = SimpleNamespace(log=by_torch("log"), log1p=by_torch("log1p"))
interpreter._patch_builtin = patch_builtins
interpreter._get_np_dtype = np_dtype
EVERY_PART = [*every_part(recurrent=False), "SolarOpen"]  # with three layers
COMMON["num_hidden_layers"] = 2  # layers of every model here: it is slow
GPU = gpu.Gpu(shared=1 << 16, processors=1)  # four programs
KERNELS = Kernels(linear, groups, float8, prompts, experts, between, states, GPU)
NAME = "actors.engines.decoder.gpu.triton_kernels"


@pytest.fixture(autouse=True)
def as_on_a_small_gpu(monkeypatch):
    """Little room, which the interpreter copies for every launch, and small tiles of prompts."""
    monkeypatch.setattr(in_place_module, "MAX_PARTS", 512)
    monkeypatch.setattr(prompts, "ROWS", (8, 16))
    monkeypatch.setattr(prompts, "COLUMNS", 64)


def exact(query, keys, values, slots, scale):
    """One row in float64: query (heads, width), what it sees in ``slots``."""
    group = len(query) // len(keys)
    keys, values = (part[:, slots].repeat_interleave(group, 0).double() for part in (keys, values))
    weights = (torch.einsum("hd,hnd->hn", query.double(), keys) * scale).softmax(-1)
    return torch.einsum("hn,hnd->hd", weights, values).flatten()


@pytest.mark.parametrize(
    "heads, kv_heads, width, dtype",
    [(8, 2, 32, torch.float32), (3, 3, 48, torch.float16)],
)
def test_a_row_sees_its_text_wherever_that_lies_and_has_the_bits_that_it_has_alone(heads, kv_heads, width, dtype):
    chance = torch.Generator().manual_seed(heads)
    pool, part = 2500, kernels.SPLIT
    keys, values = (torch.randn(kv_heads, pool, width, generator=chance).to(dtype) for _ in range(2))
    spec = Attention(heads, kv_heads, width, width**-0.5, (), "")
    held = SimpleNamespace(keys=[keys], values=[values], device=keys.device)
    layout = InPlace(SimpleNamespace(attentions=[spec]), held, True, kernels, GPU)

    def attended(batch: FlatBatch, query: torch.Tensor, rows: int) -> torch.Tensor:
        plan = layout.plan(rows, batch.segments)
        host = np.zeros(plan.bytes, dtype=np.uint8)
        plan.pack(host)
        return layout.sight(plan.rows, torch.from_numpy(host))(0, spec, query, None)

    batch = FlatBatch()
    for base, length, parents in [(100, 70, [-1, 0, 0, 1, -1]), (300, part + 88, []), (1200, 9 * part - 1, [-1, -1])]:
        lay_out(batch, base, length, range(1 + len(parents)), parents)
    rows = len(batch.tokens)
    query = torch.randn(rows + 1, heads, width, generator=chance).to(dtype)
    found = attended(batch, query, rows + 1)
    assert not found[-1].any()  # no length
    row = 0
    for segment in batch.segments:
        for visible in segment.visible:
            look = (segment.base + np.flatnonzero(visible)).tolist()
            tolerance = 1e-5 if dtype == torch.float32 else 2e-3
            assert (found[row] - exact(query[row], keys, values, look, width**-0.5)).abs().max() < tolerance
            kept = [part.clone() for part in (keys, values)]
            for there, here in zip((keys, values), kept, strict=True):
                there[:, 9 : 9 + len(look)] = here[:, look]
            lay_out(alone := FlatBatch(), 9, len(look), [0], [])
            assert torch.equal(attended(alone, query[row : row + 1], 1)[0], found[row])
            for there, here in zip((keys, values), kept, strict=True):
                there.copy_(here)
            row += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns, depth", [(70, 96), (200, 400), (24, 2100)])
def test_a_row_of_a_linear_layer_has_the_bits_that_it_has_alone(columns, depth, dtype):
    chance = torch.Generator().manual_seed(depth)
    x = torch.randn(40, depth, generator=chance).to(dtype)
    weight, bias = ((torch.randn(*size, generator=chance) / 20).to(dtype) for size in ((columns, depth), (columns,)))
    for given in (None, bias):
        found = linear.multiply(x, Matrix(weight, given), GPU)
        assert (len(found) > 1) == (depth > 2000)
        right = x.double() @ weight.double().T + (0 if given is None else given.double())
        assert (found.double().sum(0) - right).abs().max() < 1e-4
        for rows in (1, 3, 17):
            assert torch.equal(linear.multiply(x[:rows], Matrix(weight, given), GPU), found[:, :rows])


@pytest.mark.parametrize("biased", [False, True])
def test_a_gated_layer_is_silu_of_one_half_times_the_other(biased):
    chance = torch.Generator().manual_seed(1)
    x, weight = torch.randn(19, 72, generator=chance), torch.randn(140, 72, generator=chance) / 8
    bias = torch.randn(140, generator=chance) if biased else None
    gate, up = torch.nn.functional.linear(x, weight, bias).split(70, 1)
    found = linear.multiply_gated(x, Matrix(weight, bias), GPU)
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up, atol=1e-5, rtol=1e-5)
    assert torch.equal(linear.multiply_gated(x[:2].contiguous(), Matrix(weight, bias), GPU), found[:2])


def test_splits_are_added_up_in_order_before_the_norm():
    chance = torch.Generator().manual_seed(2)
    x, parts, weight = (torch.randn(*size, generator=chance) for size in ((5, 200), (3, 5, 200), (200,)))
    begun = x.clone()
    then, norm = layout.Affine(weight), Norm(1e-5)
    found = between.join(x, parts, 1.0, None, then, norm)
    torch.testing.assert_close(x, begun + parts.sum(0))
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (200,), weight, 1e-5))
    kept = x.clone()
    assert torch.equal(between.join(x, None, 1.0, None, then, norm), found) and torch.equal(x, kept)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_added_is_normed_and_scaled_first_where_a_norm_stands_behind(centred, biased):
    chance = torch.Generator().manual_seed(3)
    x, parts, weight, bias = (torch.randn(*size, generator=chance) for size in ((5, 72), (3, 5, 72), (72,), (72,)))
    norm, affine = Norm(1e-5, centred), layout.Affine(weight, bias if biased and centred else None)
    ops, begun = TorchOps(norm, torch.float32, 8), x.clone()
    for behind, then in ((affine, None), (affine, affine), (None, affine)):
        right, expected = ops.join(begun, parts, 0.5, behind, then)
        torch.testing.assert_close(between.join(x, parts, 0.5, behind, then, norm), expected)
        torch.testing.assert_close(x, right)
        x.copy_(begun)


def test_the_cut_of_a_layer_does_not_depend_on_its_rows():
    for columns, depth in ((4096, 4096), (4096, 11008), (22016, 4096), (512, 512)):
        for gated in (False, True):
            cuts = [linear.cut_of(rows, columns, depth, 2, gated, 100_000) for rows in (1, 16, 17, 64, 256)]
            assert len({(cut.depth, cut.splits, cut.reach) for cut in cuts}) == 1
            assert [cut.rows for cut in cuts] == [16, 16, 32, 64, 128]
            assert all(1 <= cut.stages <= linear.STAGES and cut.reach * cut.splits >= depth for cut in cuts)
            for shared in (99 << 10, 163 << 10, 227 << 10) if not gated else ():
                cut = linear.cut_of(16, columns, depth, 2, gated, shared)
                assert cut.stages * cut.depth * 2 * (linear.COLUMNS + 16) <= shared // 2, "two programs"


def test_rounds_with_biases_have_torchs_logits_and_a_row_has_the_bits_of_a_chain_alone():
    model = make("qwen2")
    engine, plain = (GpuEngine(make("qwen2"), info(model), 2048) for _ in range(2))
    by_triton(engine, "qwen2")
    assert error_of(engine.graphs.body, plain._program) < 1e-5
    texts = {base: TEXTS[base] for base in (64, 1024)}
    for base, text in texts.items():
        for each in (engine, plain):
            fill(each, base, text)
    parts = list(some_trees(random.Random(5), texts, 7))
    found = together(engine, parts)
    close(found, together(plain, parts))
    first = 0
    for base, length, tokens, parents in parts:
        alone = tree_round(engine, base, length, tokens, parents)
        assert torch.equal(alone, found[first : first + len(tokens)])
        first += len(tokens)


def grouped(name: str, *rows: int, bias: torch.Tensor | None = None) -> GroupedMatrix:
    """Parts of the same kind of blocks, one below the other."""
    parts = [(blocks_of(name, each, at), None) for at, each in enumerate(rows)]
    return GroupedMatrix.of(Blocks(parts), bias, torch.device("cpu"))


def product_of(name: str) -> dict[str, object]:
    """What is compiled in of a kind of blocks: kinds that have the same are multiplied by one kernel."""
    return groups.form_options(next(kind.form for kind in KINDS.values() if kind.name == name))


def blocks_of(name: str, rows: int, seed: int = 0) -> Grouped:
    return nvfp4(rows, seed) if name == "NVFP4" else stored(name, rows, seed)


def nvfp4(rows: int, seed: int) -> Grouped:
    """As it is published, with groups of zeros and of the smallest and the largest scale."""
    chance = torch.Generator().manual_seed(seed)
    scales = torch.randint(1, 127, (rows, INPUTS // 16), generator=chance, dtype=torch.uint8)
    scales[:, 0], scales[0] = 0, 126
    parts = {
        "weight": torch.randint(0, 256, (rows, INPUTS // 2), generator=chance, dtype=torch.uint8),
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(3.7e-6 * (1 + seed)),
    }
    [(part, _)] = quantised.READERS["nvfp4"][0]("a layer", parts, LayerForm("nvfp4", "", 4)).blocks()[0].parts
    return part


def in_float8(span: int, rows: int, inputs: int, seed: int = 0) -> Float8Matrix:
    """``span``: inputs with a scale; 0: all."""
    chance = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 127, (rows, inputs), generator=chance, dtype=torch.uint8)
    bits[::3] |= 128
    scales = torch.rand(rows, inputs // (span or inputs), generator=chance) / 1000
    if span == 32:
        scales = scales.log2().round().exp2()
    made = quantised._float8(bits.view(torch.float8_e4m3fn), scales, (1, span))
    matrix = Float8Matrix.of(made.blocks()[0], torch.randn(rows, generator=chance), torch.device("cpu"))
    assert torch.equal(matrix.rows(torch.tensor([rows - 1, 1, 9]), torch.float32), made.values()[[rows - 1, 1, 9]])
    return matrix


@pytest.mark.parametrize(
    "span, inputs, dtype",
    [(0, 224, torch.float32), (32, 160, torch.bfloat16), (32, 1056, torch.float16), (128, 2176, torch.bfloat16)],
)
def test_float8_is_multiplied_as_it_is_stored_and_a_row_has_the_bits_that_it_has_alone(span, inputs, dtype):
    """Groups and outputs fill lanes and blocks up, and rows of every type are exact, the largest and the smallest."""
    matrix, x = in_float8(span, 72, inputs), torch.randn(17, inputs, generator=torch.Generator().manual_seed(1)) / 8
    x[3], x[4] = x[3] * 2.0**12, x[4] / 2.0**12
    x = x.to(dtype)
    found, weight = float8.multiply(x, matrix), matrix.rows(torch.arange(72), torch.float64)
    assert (len(found) > 1) == (inputs > 1024)
    for each, row in zip(found.sum(0), x.double(), strict=True):
        assert near(each, weight @ row + matrix.bias)
    for rows in (1, 3, 9):
        assert torch.equal(float8.multiply(x[:rows], matrix), found[:, :rows])
    assert as_a_prompt(x[:9], matrix, weight)


def as_a_prompt(x: torch.Tensor, matrix: GroupedMatrix | Float8Matrix, weight: torch.Tensor) -> bool:
    """Whether a prompt's rows get the products of numbers that are rounded to their type."""
    found, right = prompts.multiply(x, matrix, GPU).double().sum(0), x.double() @ weight.to(x.dtype).double().T
    right = right if matrix.bias is None else right + matrix.bias.double()
    return bool((found - right).abs().max() < (1e-6 if x.itemsize == 4 else 2.0**-8) * right.abs().max())


def near(found: torch.Tensor, right: torch.Tensor) -> bool:
    return bool((found.double() - right.double()).abs().max() < 1e-6 * right.abs().max())


@pytest.mark.parametrize("name", [*{str(product_of(name)): name for name in CODES}.values(), "NVFP4"])
def test_products_of_integers_are_torchs_and_a_row_has_the_bits_that_it_has_alone(name):
    # a last block of tensor cores begins before the end of the one before it, where words have whole numbers
    outputs = 24 if name.startswith(("Q5", "Q6")) else 72
    matrix = grouped(name, outputs)
    weight = matrix.parts[0].values(slice(None))
    ids = torch.tensor([[outputs - 1, 0], [7, 7]])
    assert torch.equal(groups.rows_of(matrix, ids, torch.float32), weight[ids])
    x = torch.randn(7, INPUTS, generator=torch.Generator().manual_seed(3))
    found = groups.multiply(x, matrix)
    assert near(found.sum(0), matrix.multiply(matrix.inputs(x)))
    for rows in (1, 2, 3):  # each in a program of another size, and all of them by tensor cores
        assert torch.equal(groups.multiply(x[:rows], matrix), found[:, :rows])
    many = groups.multiply(x.repeat(3, 1)[:17], matrix) if name in ("Q4_0", "NVFP4") else None
    assert many is None or torch.equal(many[:, 7:14], found)
    assert as_a_prompt(x, matrix, weight)


def test_a_token_with_its_noise_is_torchs_in_two_launches(monkeypatch):
    """Rows of any seeds, with a tie, a row of nothing and two that are no numbers."""
    rows = torch.randn(6, 2500, generator=torch.Generator().manual_seed(5)) * 4
    rows[1], rows[2, 7], rows[3, 2400], rows[4] = -torch.inf, torch.nan, torch.inf, 0.0
    rows[4, [3, 2301]] = 1e30
    given = [keys(seed, 3 * seed) for seed in range(6)], [1.0, 1.0, 0.7, 1.0, 1.0, 1 / 0.3]
    found = sampler._choose_in_launches(choice.choose, rows, *given)
    assert found.tolist() == sampler._choose_by_torch(rows.clone(), *given).tolist()
    assert found[1:5].tolist() == [0, -1, -1, 3]
    right = [sampler._choose_by_torch(rows[5:].clone(), [keys(5, at)], [1.0]) for at in range(40)]
    alike = sampler._choose_in_launches(
        choice.choose, rows[5:].repeat(40, 1), [keys(5, at) for at in range(40)], [1.0] * 40
    )
    assert torch.equal(alike, torch.cat(right)) and len(set(alike.tolist())) > 1
    by_kernel = functools.partial(sampler._choose_in_launches, choice.choose)
    assert sampler._difference(torch.device("cpu"), by_kernel) == 0
    asked = [Sampling(temperature=heat, top_k=most, seed=7) for heat, most in ((0.0, 0), (0.8, 0), (2.0, 5), (1.1, 0))]
    groups = [sampler.Rows(sampler.SamplerState(each, [1]), [at], [[]]) for at, each in enumerate(asked)]
    expected = sampler._choose_together(rows[[0, 5, 5, 0]], groups)
    monkeypatch.setattr(sampler, "noisy_choice", lambda device: by_kernel)
    assert sampler._choose_together(rows[[0, 5, 5, 0]], groups) == expected


def test_rows_are_rounded_as_on_a_cpu():
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(4))
    x[0, :32], x[1, 5], x[1, 40], x[2, 0] = 0.0, 1e30, torch.inf, torch.nan
    made, (whole, scales) = groups.round_rows(x).records, rounded(x)
    records = made[:3, :3].transpose(0, 1)
    finite = torch.tensor([[True] * 3, [True, False, True], [False, True, True]])
    assert torch.equal(records[..., :8].contiguous().view(torch.int8)[finite].float(), whole[finite])
    floats = records[..., 8:10].contiguous().view(torch.float32)
    torch.testing.assert_close(floats[..., 0], scales[..., 0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(floats[..., 1][finite], (scales[..., 0] * whole.sum(2))[finite])
    assert not finite.logical_xor(floats.isfinite().all(2)).any()
    assert not made[3, :3, :10].any()  # a group that fills up


def test_rows_that_are_rounded_where_they_are_made_have_the_same_bits():
    """With groups that fill up."""
    chance = torch.Generator().manual_seed(6)
    x, parts, weight = (torch.randn(*size, generator=chance) for size in ((3, 96), (2, 3, 192), (96,)))
    for by in (
        lambda room: between.join(x, None, 1.0, None, layout.Affine(weight), Norm(1e-5), room),
        lambda room: between.gate(parts, torch.float16, room),
    ):
        made = by(room := groups.room(x, 96))
        assert torch.equal(room.records[:, :3, :10], groups.round_rows(made).records[:, :3, :10])


def test_a_deep_product_is_split():
    """With groups that fill the last split up."""
    part = cut_off(stored("Q8_0", 40), 480)
    part = Stored(part.name, (8, 2400), part.kind, part.data)
    matrix = GroupedMatrix.of(Blocks([(part, None)]), None, torch.device("cpu"))
    found = groups.multiply(x := torch.randn(2, 2400), matrix)
    assert len(found) > 1 and near(found.sum(0), matrix.multiply(matrix.inputs(x)))
    assert len(prompts.multiply(x, matrix, GPU)) > 1 and as_a_prompt(x, matrix, matrix.parts[0].values(slice(None)))


@pytest.mark.parametrize("biased", [False, True])
def test_parts_of_several_forms_are_multiplied_side_by_side(biased):
    """With groups that fill up, and rows in 16 bits."""
    names = {"Q4_0": 20, "Q8_0": 70, "Q5_1": 33}
    parts = [cut_off(stored(name, rows), 96) for name, rows in names.items()]
    bias = torch.randn(123) if biased else None
    matrix = GroupedMatrix.of(Blocks([(part, None) for part in parts]), bias, torch.device("cpu"))
    x = torch.randn(5, 96).half()
    assert near(groups.multiply(x, matrix).sum(0), matrix.multiply(matrix.inputs(x.float())))
    assert as_a_prompt(x, matrix, torch.cat([part.values(slice(None)) for part in matrix.parts]))


def test_a_gated_layer_is_silu_of_one_half_times_the_other_over_all_splits():
    parts = torch.randn(3, 5, 2 * 700)
    gate, up = parts.sum(0).chunk(2, 1)
    torch.testing.assert_close(between.gate(parts, torch.float32), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("name, biased", [("Q4_K", False), ("MXFP4", True), ("NVFP4", True), (0, True), (32, True)])
def test_a_row_has_the_numbers_of_the_experts_that_it_has_chosen(name, biased):
    """A number: float8 with a scale for so many inputs."""
    biases = torch.randn(3, 40) if biased else [None] * 3
    if isinstance(name, str):
        each = [grouped(name, 40, bias=bias) for bias in biases]
        each[1] = GroupedMatrix.of(Blocks([(blocks_of(name, 40, 7), None)]), biases[1], torch.device("cpu"))
    else:
        each = [in_float8(name, 40, INPUTS, seed) for seed in range(3)]
    x, chosen = torch.randn(2, INPUTS), torch.tensor([0, 1, 1, 2])
    found = experts.multiply(x, chosen, experts.Mixture.of(each, x.device))
    right = [
        each[expert].multiply(each[0].inputs(x[pair // 2][None]))[0] for pair, expert in enumerate(chosen.tolist())
    ]
    assert near(found, torch.stack(right))
    assert torch.equal(experts.multiply(x[1:], chosen[2:], experts.Mixture.of(each, x.device)), found[2:])


def test_rounds_of_a_file_in_blocks_have_torchs_logits_and_a_row_has_the_bits_of_a_chain_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs_module, "PROMPT_ROWS", (4, 8))
    monkeypatch.setattr(groups, "MANY", 512)  # the interpreter takes as long for many as for few
    file, cpu = mixed("untied llama", tmp_path, vocab_size=VOCAB, num_hidden_layers=2), torch.device("cpu")
    config = GGUFFile(file).known_config()
    models = [GGUFFile(file).for_engine(config, cpu, torch.float32) for _ in range(2)]
    engine, plain = (GpuEngine(model, info(model), 2048) for model in models)
    weights = layout.lay_out(spec_of(config), models[0].source)
    weights = send(weights, cpu)
    record(engine, weights)
    assert (
        error_of(
            engine.graphs.body, Program(weights, engine.pool, TorchOps(engine._program.spec.norm, torch.float32, 2048))
        )
        < 1e-4
    )
    text, prompt = TEXTS[64], []
    for each in (engine, plain):
        fill(each, 64, text)
        batch, at = FlatBatch(), range(4)
        batch.add(900, text[:4], [*at], [900 + place for place in at], causal(0, 4)).prompt = True
        prompt.append(each.forward(batch, [3]))
    close(*prompt)
    [part] = some_trees(random.Random(5), {64: text}, 7)
    found = tree_round(engine, *part)
    close(found, tree_round(plain, *part))
    assert torch.equal(tree_round(engine, *part[:2], part[2][:1], []), found[:1])
    assert engine.reading().read_bytes == sum(matrix.nbytes for matrix in weights.read())


def prompt(engine: GpuEngine) -> None:
    batch, at = FlatBatch(), range(5)
    batch.add(900, TEXTS[64][:5], [*at], [900 + place for place in at], causal(0, 5)).prompt = True
    engine.forward(batch, [4])


def launches_of(
    engine: GpuEngine, monkeypatch, forward=lambda engine: tree_round(engine, 64, 8, [1], [])
) -> Counter[str]:
    """Kernels of a round of one row, by their names. They are not run."""
    counted: Counter[str] = Counter()
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", lambda self, *_, **__: counted.update([self.fn.__name__]))
    forward(engine)
    return counted


def test_a_layer_is_nine_launches_and_in_blocks_one_more(tmp_path, monkeypatch):
    """Four products, the rotation, attention and its join, and two norms; in blocks the gate is apart. Rows are rounded
    where they are made. Beside layers: the first norm and the head, and in blocks the embedding."""
    file, cpu = mixed("untied llama", tmp_path, vocab_size=VOCAB, num_hidden_layers=2), torch.device("cpu")
    config = GGUFFile(file).known_config()
    model = GGUFFile(file).for_engine(config, cpu, torch.float32)
    weights = layout.lay_out(spec_of(config), GGUFFile(file).for_engine(config, cpu, torch.float32).source)
    blocks = GpuEngine(model, info(model), 2048)
    weights = send(weights, cpu)
    record(blocks, weights)
    layer = {"_turn": 1, "_attend": 1, "_join": 3}
    expected = Counter({name: 2 * count for name, count in layer.items()}) + Counter({"_join": 1})
    assert launches_of(engine_in_place(), monkeypatch) == expected + Counter({"_multiply": 2 * 4 + 1})
    forms = sum(len(matrix.parts) for each in weights.layers for matrix in (each.qkv, each.out, each.up, each.down))
    assert forms > 2 * 4  # each form of a matrix is a launch
    apart = {"_multiply": forms + 1, "_gate": 2, "_write": 1}
    assert launches_of(blocks, monkeypatch) == expected + Counter(apart)
    # A piece of a prompt: the head is of its last row
    monkeypatch.setattr(graphs_module, "PROMPT_ROWS", (4, 8))
    apart = {"_multiply": 1, "_multiply_prompt": forms, "_write": 1, "_round": 1}
    assert launches_of(blocks, monkeypatch, prompt) == expected + Counter(apart)


def weights_of(family: str) -> layout.DecoderWeights:
    model = make(family)
    return layout.lay_out(spec_of(model.config), ModuleSource(model))


def by_triton(engine: GpuEngine, family: str) -> None:
    """What the engine records is computed as on a GPU; texts are filled in by torch, in a hundredth of the time."""
    record(engine, weights_of(family))


def record(engine: GpuEngine, weights: layout.DecoderWeights) -> None:
    ops = TritonOps(weights.spec.norm, engine.dtype, 2048, KERNELS, isinstance(weights.head, GroupedMatrix))
    program, seen = Program(weights, engine.pool, ops), InPlace(weights.spec, engine.pool, engine._exact, kernels, GPU)
    engine.graphs = Graphs(program, Direct(), weights.vocabulary, seen)


def engine_in_place() -> GpuEngine:
    model = make("qwen3")
    engine = GpuEngine(model, info(model), 2048)
    by_triton(engine, "qwen3")
    return engine


def test_a_recorded_piece_of_a_prompt_has_torchs_logits_and_leaves_its_keys_and_values(monkeypatch):
    """The second piece is behind the first, and of fewer rows than are recorded."""
    monkeypatch.setattr(graphs_module, "PROMPT_ROWS", (4, 8))  # the interpreter takes minutes for 128
    engine, model = engine_in_place(), make("qwen3")
    plain = GpuEngine(model, info(model), 2048)
    text = TEXTS[64]
    for start, end in ((0, 8), (8, 11)):
        found = []
        for each in (engine, plain):
            batch, at = FlatBatch(), range(start, end)
            batch.add(7, text[start:end], [*at], [7 + place for place in at], causal(start, end)).prompt = True
            found.append(each.forward(batch, [end - start - 1]))
        close(*found)
    assert len(engine.graphs) == 2
    for each in (engine, plain):
        found.append(tree_round(each, 7, 12, [5, 6, 8], [-1, -1]))
    close(*found[2:])


def test_every_branch_of_every_request_has_the_logits_of_the_plain_model_and_the_bits_of_a_chain_alone():
    engine, model = engine_in_place(), make("qwen3")
    plain = GpuEngine(model, info(model), 2048)
    texts = {base: TEXTS[base] for base in (64, 448)}
    for base, text in texts.items():
        for each in (engine, plain):
            fill(each, base, text)
    parts = list(some_trees(random.Random(5), texts, 7))
    found = together(engine, parts)
    assert engine.best is not None, "no round of graphs"
    close(found, together(plain, parts))
    first = 0
    for base, length, tokens, parents in parts:
        for leaf in set(range(len(parents))) - set(parents):
            path = [leaf]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            rows = [0, *(1 + node for node in path)]
            alone = tree_round(engine, base, length, [tokens[row] for row in rows], range(-1, len(path) - 1))
            assert torch.equal(alone, found[[first + row for row in rows]])
        first += len(tokens)


def test_a_draft_grows_the_tree_that_it_grows_without_graphs():
    model = make("llama")
    engines = [GpuEngine(make("llama"), info(model), 2048, exact=False) for _ in range(2)]
    by_triton(engines[0], "llama")
    grown = []
    for engine in engines:
        draft = Draft(engine, candidates=3)
        handle = draft.open(TEXTS[64], 4, Sampling(max_tokens=40))
        [root] = draft.expand([Leaf(handle, TEXTS[64][-1], (), is_root=True)])
        below = draft.expand([Leaf(handle, token, ()) for token in root.tokens])
        last = draft.expand([Leaf(handle, below[1].tokens[0], (below[1].slot,)), Leaf(handle, 7, (below[2].slot,))])
        grown.append([root, *below, *last])
        assert engine.graphs is None or engine.best is not None
    for ours, theirs in zip(*grown, strict=True):
        assert (ours.slot, ours.tokens) == (theirs.slot, theirs.tokens)
        assert ours.probs == pytest.approx(theirs.probs, abs=1e-5)


@pytest.mark.parametrize("part", ["attention", "linear", "states"])
@pytest.mark.parametrize("fault", ["wrong", "raises", None])
def test_kernels_that_fail_or_err_on_this_machine_are_not_used(part, fault, monkeypatch, caplog):
    parts = {"attention": (kernels, "attend"), "linear": (linear, "multiply"), "states": (states, "convolve")}
    module, name = parts[part]
    usual = getattr(module, name)

    def broken(*given):
        if fault == "raises":
            raise RuntimeError("PTX was compiled for another GPU\nand so on")
        return usual(*given) + (0.1 if fault == "wrong" else 0.0)

    engine = recurrent("Mamba", None) if part == "states" else engine_in_place()
    caplog.clear()
    monkeypatch.setattr(module, name, broken)
    monkeypatch.setattr(gpu, "gpu_of", lambda device: GPU)
    if part == "attention":
        used = in_place(engine._program.spec, engine.pool, True) is not None
    else:
        given = engine._program.weights, engine.pool, 2048, engine.recurrence
        used = isinstance(gpu_program(*given).ops, TritonOps)
    assert used == (fault is None)
    assert ("Triton's" in caplog.text) == (fault is not None)
    assert "and so on" not in caplog.text


def test_without_triton_torch_computes_rounds(monkeypatch):
    engine = engine_in_place()
    for name in ("attention", "linear", "groups", "float8", "between", "gpu"):
        monkeypatch.delattr(importlib.import_module(NAME), name)
        monkeypatch.setitem(sys.modules, f"{NAME}.{name}", None)
    assert in_place(engine._program.spec, engine.pool, True) is None
    assert type(gpu_program(weights_of("qwen3"), engine.pool, 2048).ops) is TorchOps


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """In whole vectors: for what is left of one torch has another function on a CPU, with another last bit."""
    return torch.sigmoid(torch.nn.functional.pad(x.flatten(), (0, -x.numel() % 64)))[: x.numel()].view(x.shape)


@pytest.mark.parametrize("name", EVERY_PART)
@torch.inference_mode()
def test_rounds_of_every_part_of_a_description_have_torchs_logits_and_a_row_has_the_bits_of_a_chain_alone(
    name, monkeypatch
):
    monkeypatch.setitem(COMMON, "num_hidden_layers", 3)
    monkeypatch.setattr(torch.Tensor, "sigmoid", sigmoid)
    model = model_of(name)
    spec = spec_of(model.config).in_context(info(model).max_context)
    plain = GpuEngine(model_of(name), info(model), 1024)
    engine = GpuEngine(model_of(name), info(model), 1024)
    weights = layout.lay_out(spec, ModuleSource(model))
    weights = send(weights, torch.device("cpu"))
    ops = TritonOps(spec.norm, torch.float32, 1024, KERNELS)
    engine._program = Program(weights, engine.pool, ops)
    assert recordable(engine._program)
    seen = InPlace(spec, engine.pool, True, kernels, GPU)
    engine.graphs = Graphs(engine._program, Direct(), weights.vocabulary, seen)
    text, base = TEXTS[448][:70], 448
    fill(plain, base, text)
    for mine, theirs in zip(engine.pool.parts, plain.pool.parts, strict=True):
        mine.copy_(theirs)
    engine.pool.positions[:] = plain.pool.positions
    tree = (base, len(text), [text[-1], 3, 4], [-1, -1])
    found, expected = tree_round(engine, *tree), tree_round(plain, *tree)
    assert engine.best is not None, "no round of graphs"
    assert (found - expected).norm() < 1e-5 * expected.norm()
    again = tree_round(engine, base, len(text), [text[-1], 4], [-1])
    assert torch.equal(again, found[[0, 2]])


class Launches(TapeRecorder):
    """A tape that holds launches of kernels too, with the memory that they had."""

    def capture(self, program):
        launch = interpreter.GridExecutor.__call__

        def taped(executor, *given, **options):
            with _disable_current_modes():  # the interpreter's own operations are no part of the program
                launch(executor, *given, **options)
            if isinstance(mode := _get_current_dispatch_mode(), Tape):
                mode.steps.append((functools.partial(launch, executor), given, options, [None], [False]))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter.GridExecutor, "__call__", taped)
            return super().capture(program)


RECURRENT = ("Lfm2", "Mamba", "GraniteMoeHybrid", "Qwen3_5")  # one of each kind
BASES = (64, 448)


def recurrent(name: str, recorder, slots: int = 1024) -> GpuEngine:
    """Its rounds are recorded; None: torch computes them one operation after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMMON, "num_hidden_layers", 3)
        model, same = model_of(name), model_of(name)
    engine = GpuEngine(model, info(model), slots, plain=True)
    if recorder is not None:
        weights = layout.lay_out(engine._program.spec, ModuleSource(same))
        ops = TritonOps(engine._program.spec.norm, torch.float32, slots, KERNELS)
        engine._program = Program(weights, engine.pool, ops, engine.recurrence)
        assert recordable(engine._program)
        seen = InPlace(engine._program.spec, engine.pool, True, kernels, GPU)
        engine.graphs = Graphs(engine._program, recorder, weights.vocabulary, seen)
    return engine


class Texts:
    """Two texts of an engine, with what their layers remember."""

    def __init__(self, engine: GpuEngine) -> None:
        self.engine, self.states = engine, [engine.recurrence.new() for _ in BASES]
        self.lengths = [0, 0]
        for which, length in enumerate((7, 5)):
            batch, at = FlatBatch(), range(length)
            slots = [BASES[which] + place for place in at]
            segment = batch.add(BASES[which], TEXTS[64][:length], [*at], slots, causal(0, length))
            segment.prompt, segment.state = True, self.states[which]
            engine.forward(batch, [length - 1])
            segment.state.keep(at)
            self.lengths[which] = length + 1

    def run(self, windows: dict[int, list[int]], tokens: list[int] | None = None) -> torch.Tensor:
        """``windows``: parents of the nodes behind each root, by text; ``tokens``: of roots and nodes."""
        batch = FlatBatch()
        for which, parents in windows.items():
            ids = tokens or [(5 + 7 * at) % VOCAB for at in range(1 + len(parents))]
            lay_out(batch, BASES[which], self.lengths[which], ids, parents)
            batch.segments[-1].state = self.states[which]
            batch.segments[-1].parents = [-1, *(parent + 1 for parent in parents)]
        return self.engine.forward(batch)

    def keep(self, which: int, path: list[int]) -> None:
        home = BASES[which] + self.lengths[which] - 1
        self.engine.pool.copy([home + row for row in path], [home + depth for depth in range(len(path))])
        self.states[which].keep(path)
        self.lengths[which] += len(path)


@pytest.mark.parametrize("name", RECURRENT)
@torch.inference_mode()
def test_windows_of_every_kind_of_recurrent_layer_have_torchs_logits(name):
    theirs, made = Texts(recurrent(name, None)), recurrent(name, Direct())
    by_kernels, recorded = made._program, made.graphs
    made._program = Program(by_kernels.weights, made.pool, theirs.engine._program.ops, made.recurrence)
    made.graphs = None
    ours = Texts(made)  # prompts by torch, in a fraction of the time
    made._program, made.graphs = by_kernels, recorded
    for _ in range(2):
        found, right = (texts.run({0: [-1, -1, 1]}) for texts in (ours, theirs))
        assert made.best is not None, "no round of graphs"
        assert (found - right).norm() < 5e-5 * right.norm()
        for texts in (ours, theirs):
            texts.keep(0, [0, 2, 3])


@torch.inference_mode()
def test_a_recorded_recurrent_round_serves_every_text_and_window_and_a_row_has_the_bits_of_a_chain_alone(monkeypatch):
    monkeypatch.setattr(graphs_module, "PROMPT_ROWS", (8,))
    recorder = Launches()
    tape, plain = (Texts(recurrent("Qwen3_5", each)) for each in (recorder, None))
    tree = [-1, 0, -1, 2, 2]  # two branches, of which one parts once more
    # windows and the paths that are accepted of them: records of two texts are taken in at once, or left for later
    rounds = (
        ({0: tree, 1: [-1]}, {0: [0, 3, 5], 1: [0]}),
        ({1: tree, 0: [-1]}, {1: [0, 1]}),
        ({0: [-1], 1: tree}, {0: [0, 1], 1: [0, 3]}),
        ({0: [-1, -1, 0]}, {0: [0, 2]}),  # recorded while a record is pending
    )
    for windows, paths in rounds:
        found, right = (texts.run(windows) for texts in (tape, plain))
        assert tape.engine.best is not None, "no round of graphs"
        assert (found - right).norm() < 1e-5 * right.norm()
        for texts in (tape, plain):
            for which, path in paths.items():
                texts.keep(which, path)
    found = tape.run({0: [-1], 1: tree})
    alone = tape.run({1: [-1, 0, -1, -1, -1, -1, -1]}, [5, 5 + 7 * 3, 5 + 7 * 5, 9, 9, 9, 9, 9])
    assert torch.equal(alone[:3], found[[2, 5, 7]]), "the second branch of the tree"
    assert recorder.replays == len(rounds) + 4 and len(tape.engine.graphs) == 3, "prompts', and rounds' of 8 and 4 rows"


@torch.inference_mode()
def test_a_recurrent_round_is_one_copy_in_and_one_replay_over_memory_that_stays_where_it_is():
    class Silent(TapeRecorder):
        def capture(self, program):
            return lambda: None

    texts = Texts(recurrent("Qwen3_5", Silent()))
    texts.run({0: [-1, 0, 1]})
    memory = texts.engine.recurrence.memory
    before = [part.data_ptr() for layer in memory.layers for part in (layer.states, layer.inputs, layer.records)]
    with Operations() as seen:
        for _ in range(5):
            texts.states[0].keep([0, 1])
            texts.run({0: [-1, 0, 1]})
    made = [name for name in seen.names if name not in ("slice", "alias", "detach")]
    assert made == ["copy_", "clone"] * 5
    after = [part.data_ptr() for layer in memory.layers for part in (layer.states, layer.inputs, layer.records)]
    assert before == after and len(texts.engine.graphs) == 2


def test_records_and_states_of_texts_that_are_gone_are_free_again_and_more_records_get_more_memory():
    engine = recurrent("Qwen3_5", None)
    memory, texts = engine.recurrence.memory, Texts(engine)
    slots, places = len(memory.slots), len(memory.places)
    held = []
    while memory.count == 128:
        texts.run({0: [-1] * 40})
        held += texts.states[0].rows
    expected = texts.run({0: [-1] * 40})
    assert torch.equal(texts.run({0: [-1] * 40}), expected)
    held.clear()
    copies = [state.copy() for state in texts.states]
    assert len(memory.slots) == slots - 2
    texts.states[0].keep([0])
    del copies, texts
    assert len(memory.places) == places + 128 and len(memory.slots) == slots + 2
