"""Write a checkpoint that computes the same function as another at the cost of a larger model.

A benchmark needs a target as costly as a real one, and a draft that agrees with it as a trained pair does. Inflating
a small trained target gives both. Why the function stays the same:

- A wider hidden state carries zeros after the original values: every matrix that writes to it gets zero rows there,
  every matrix that reads from it zero columns.
- RMSNorm divides by sqrt(mean(x^2) + eps). With r = old/new width the mean over the padded state is r times the old
  one; with eps' = r eps and weight' = sqrt(r) weight the output is the original's.
- New heads have zero projections, hence zero values, and the output projection ignores them. head_dim stays, so that
  rotary positions and the attention scale do. Heads and key/value heads grow in proportion, so that an old head keeps
  its key/value head.
- Added layers have random weights but zero output projections (o_proj, down_proj): they add exactly nothing.

In float32 the logits agree to rounding. In bfloat16 the norm weights are rounded once more unless sqrt(r) is a
power of two (hidden 4 or 16 times the source's): the text may then differ from the source's here and there, while the
pair's agreement stays.
"""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from actors.engines.weights.draft_vocabulary import FIELD
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from protocols.errors import ConfigError, ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja"),
    "generation_config.json",
)
EMBEDDING = "model.embed_tokens.weight"
MLP_MULTIPLE = 64  # sizes of real models are multiples of it; our kernels need multiples of 16
MARK = "duoactor_inflated"  # key in config.json: where the function came from, so that reports can say it

Progress = Callable[[int, int], None]  # bytes made, bytes in all


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a decoder's cost."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def parameters(self) -> int:
        """Number in all layers and one embedding; biases and norms left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocab * self.hidden


@dataclass(frozen=True, slots=True)
class Size:
    """``intermediate`` 0 grows the MLP in proportion to ``hidden``, to a multiple of ``MLP_MULTIPLE``."""

    layers: int
    hidden: int
    intermediate: int = 0


def inflate(
    source: str | Path,
    destination: str | Path,
    size: Size,
    dtype: str | None = None,
    shard_bytes: int = 2**30,
    progress: Progress | None = None,
) -> ModelShape:
    """Inflate the checkpoint directory ``source`` into the new directory ``destination``; returns the new shape.

    ``dtype``: None keeps the source's. One shard at a time is in memory. Raises ConfigError for sizes that cannot work,
    ModelError for a source that cannot be read or is of another family.
    """
    source, destination = Path(source), Path(destination)
    config = _read_config(source)
    old = _shape_of(config)
    new = _grown(old, size)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{destination} exists already; choose another directory or remove it")
    weights = _weights_of(source)
    kind = getattr(torch, dtype) if dtype else weights[EMBEDDING].dtype
    plan = list(_plan(weights, old, new, kind))
    total = sum(tensor.nbytes for tensor in plan)
    destination.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(destination).free
    if total > free:
        raise ConfigError(f"{destination} has {free / 1e9:.1f} GB free but the model needs {total / 1e9:.1f} GB")
    _write(destination, plan, shard_bytes, progress)
    for pattern in COPIED:
        for file in source.glob(pattern):
            shutil.copyfile(file, destination / file.name)
    # Last, because without it an interrupted directory cannot be mistaken for a model.
    (destination / "config.json").write_text(json.dumps(_new_config(config, old, new, kind, source), indent=2) + "\n")
    return new


def _weights_of(directory: Path) -> TensorFiles:
    try:
        files = TensorFiles(weight_files(directory))
        old = [name for name in files if name.endswith("rotary_emb.inv_freq")]  # it is computed today
        weights = TensorFiles(weight_files(directory), old)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the weights in {directory} cannot be read: {error}") from None
    if EMBEDDING not in weights:
        raise ModelError(f"{directory} cannot be read: no decoder weights have their usual names in it")
    return weights


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor that is made when its turn comes, then converted to ``dtype``."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _write(directory: Path, plan: Sequence[Planned], shard_bytes: int, progress: Progress | None) -> None:
    """Files named as transformers names them: one, or shards with an index. Memory holds one shard at a time."""
    planned = {tensor.name: tensor for tensor in plan}
    # tensors without memory: only their sizes count for the cut
    sizes = {tensor.name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in plan}
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=shard_bytes)
    total = sum(tensor.nbytes for tensor in plan)
    done = 0
    for file, names in split.filename_to_tensors.items():
        shard: dict[str, Tensor] = {}
        for name in names:
            tensor = planned[name]
            shard[name] = tensor.make().to(tensor.dtype).contiguous()
            assert tuple(shard[name].shape) == tensor.shape, name
            done += tensor.nbytes
            if progress is not None:
                progress(done, total)
        save_file(shard, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _plan(weights: TensorFiles, old: ModelShape, new: ModelShape, dtype: torch.dtype) -> Iterator[Planned]:
    """Every tensor of the new checkpoint with its shape and how to make it."""
    for name, tensor in weights.items():
        shape = _padded(name, tuple(tensor.shape), old, new)
        yield Planned(name, shape, dtype, partial(_pad, weights, name, shape, math.sqrt(old.hidden / new.hidden)))
        layer, number, rest = name.partition("model.layers.0.")
        for added in range(old.layers, new.layers) if number else ():
            yield Planned(f"{layer}model.layers.{added}.{rest}", shape, dtype, partial(_added, rest, shape, added))


def _padded(name: str, shape: tuple[int, ...], old: ModelShape, new: ModelShape) -> tuple[int, ...]:
    """The shape of a tensor in the new model, by what its axes stand for."""
    h, m = (old.hidden, new.hidden), (old.intermediate, new.intermediate)
    q = (old.heads * old.head_dim, new.heads * new.head_dim)
    kv = (old.kv_heads * old.head_dim, new.kv_heads * new.head_dim)
    v, d = (old.vocab, old.vocab), (old.head_dim, old.head_dim)
    axes_by_part = {
        "embed_tokens": (v, h), "lm_head": (v, h), "norm": (h,), "input_layernorm": (h,),
        "post_attention_layernorm": (h,), "q_norm": (d,), "k_norm": (d,), "q_proj": (q, h), "k_proj": (kv, h),
        "v_proj": (kv, h), "o_proj": (h, q), "gate_proj": (m, h), "up_proj": (m, h), "down_proj": (h, m),
    }  # fmt: skip
    part, kind = name.split(".")[-2:]
    axes = axes_by_part.get(part)
    if axes is None or kind not in ("weight", "bias"):
        raise ModelError(f"inflating does not know the tensor {name}")
    axes = axes[:1] if kind == "bias" else axes
    if shape != tuple(before for before, _ in axes):
        raise ModelError(f"the tensor {name} has the shape {list(shape)}, which does not fit the source's config.json")
    return tuple(after for _, after in axes)


def _is_hidden_norm(name: str) -> bool:
    return name.endswith("norm.weight") and not name.endswith(("q_norm.weight", "k_norm.weight"))


def _pad(weights: TensorFiles, name: str, shape: tuple[int, ...], norms: float) -> Tensor:
    """``norms``: by what those of the hidden state are multiplied."""
    tensor = weights[name]
    if _is_hidden_norm(name):
        tensor = tensor.double() * norms
    padded = torch.zeros(shape, dtype=tensor.dtype)
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def _added(name: str, shape: tuple[int, ...], layer: int) -> Tensor:
    """A tensor of an added layer: random, as a trained layer's would cost, but with zero outputs."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if len(shape) == 1 or "o_proj" in name or "down_proj" in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{layer} {name}".encode()))
    return torch.randn(shape, generator=generator) * 0.02


def _read_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{source} is no model directory: its config.json cannot be read ({why})") from None
    if not isinstance(config, dict) or config.get("model_type") not in FAMILIES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise ModelError(f"models of type {kind!r} cannot be inflated; supported are {', '.join(FAMILIES)}")
    if "quantization_config" in config:
        raise ModelError(f"{source} is quantised; inflate the unquantised model")
    if config.get(FIELD, config.get("vocab_size")) != config.get("vocab_size"):
        raise ModelError(f"the output layer of {source} covers part of its vocabulary; inflate a whole model")
    return config


def _shape_of(config: dict[str, Any]) -> ModelShape:
    try:
        heads = config["num_attention_heads"]
        return ModelShape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab=config["vocab_size"],
        )
    except KeyError as missing:
        raise ModelError(f"the source's config.json lacks {missing}") from None


def _grown(old: ModelShape, size: Size) -> ModelShape:
    layers, hidden, intermediate = size.layers, size.hidden, size.intermediate
    if layers < old.layers:
        raise ConfigError(f"--layers {layers} is below the source's {old.layers}; inflating only adds layers")
    if hidden < old.hidden:
        raise ConfigError(f"--hidden {hidden} is below the source's {old.hidden}; inflating only widens")
    step = old.hidden // math.gcd(old.hidden, old.kv_heads)  # the smallest widening with whole key/value heads
    if hidden % step:
        raise ConfigError(
            f"--hidden {hidden} does not give whole heads; choose a multiple of {step}, "
            f"such as {max(1, round(hidden / step)) * step}"
        )
    in_proportion = -(-old.intermediate * hidden // (MLP_MULTIPLE * old.hidden)) * MLP_MULTIPLE
    grown = intermediate or (in_proportion if hidden > old.hidden else old.intermediate)
    if grown < old.intermediate:
        raise ConfigError(f"--intermediate {grown} is below the source's {old.intermediate}; inflating only widens")
    heads, kv_heads = old.heads * hidden // old.hidden, old.kv_heads * hidden // old.hidden
    return replace(old, layers=layers, hidden=hidden, intermediate=grown, heads=heads, kv_heads=kv_heads)


def _new_config(
    config: dict[str, Any], old: ModelShape, new: ModelShape, dtype: torch.dtype, source: Path
) -> dict[str, Any]:
    changed = config | {
        "num_hidden_layers": new.layers,
        "hidden_size": new.hidden,
        "intermediate_size": new.intermediate,
        "num_attention_heads": new.heads,
        "num_key_value_heads": new.kv_heads,
        "head_dim": new.head_dim,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6) * old.hidden / new.hidden,
        "dtype": str(dtype).removeprefix("torch."),
        MARK: {"source": source.resolve().name, "source_parameters": old.parameters, "parameters": new.parameters},
    }
    changed.pop("torch_dtype", None)
    if isinstance(kinds := config.get("layer_types"), list):
        changed["layer_types"] = [*kinds, *[kinds[-1]] * (new.layers - old.layers)]
    return changed
