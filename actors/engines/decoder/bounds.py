"""What files may say: the numbers of a configuration, and a description made of them.

Everything after this trusts a description and its weights: compiled code reads and writes by sizes and addresses that
follow from them. So whatever is read from a file passes here first, whatever its format. No torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from actors.engines.decoder.spec import (
    Attention,
    DecoderSpec,
    Experts,
    Layer,
    Mlp,
    Recurrent,
    Rotation,
    Selective,
    ShortConvolution,
)
from protocols.errors import ModelError

Shape = tuple[int, ...]
MOST_LAYERS = 2048  # the deepest published model has 160
MOST_SIZE = 1 << 24  # the widest matrix of a published model has 262,144 rows
MOST_POSITIONS = 1 << 34
NUMBERS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}  # types by the annotation of a field
# Names of numbers in configurations of Hugging Face and in GGUF metadata, and the most that they may be. A name takes
# the first pattern that it matches whole.
_MOST: Sequence[tuple[re.Pattern[str], int]] = [
    (re.compile(pattern), most)
    for pattern, most in (
        (r"max_position_embeddings|n_positions|context_length|.*sliding_window|attention_chunk_size", MOST_POSITIONS),
        (
            r"(num_|n_)?(hidden_|decoder_|encoder_|nextn_predict_)?layers?|.*block_count|first_k_dense_replace",
            MOST_LAYERS,
        ),
        (
            r".*(hidden_size|intermediate_size|vocab_size|head_dim|_rank|_heads|_experts|experts_per_tok|dimension_count)"
            r"|d_model|n_embd|n_inner|n_head|ffn_dim|embedding_length|.*feed_forward_length|expert_.*count"
            r"|attention\.(head_count|key_length|value_length).*|ssm\..*|mamba_[nd]_.*|linear_.*|.*conv_kernel.*",
            MOST_SIZE,
        ),
    )
]


def check_numbers(where: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError for a size in a configuration that no model has. ``where``: its file."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_numbers(where, value)
        elif (most := _most(name)) is not None:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, int | float) and not one <= most:
                    raise ModelError(
                        f"{name} in {where} is {one}, where a model has {most:,} at most; download it again"
                    )


def _most(name: str) -> int | None:
    return next((most for pattern, most in _MOST if pattern.fullmatch(name)), None)


def check_description(where: str, spec: DecoderSpec) -> None:
    """Raise ModelError for a description that no model has. ``where``: the file that it was made of."""
    for problem in _problems(spec):
        raise ModelError(f"the configuration of {where} does not describe a model: {problem}; download it again")


def _problems(spec: DecoderSpec) -> Iterator[str]:
    yield from _mistyped(spec, set())  # the first problem is raised: what follows may compare numbers
    if not 1 <= len(spec.layers) <= MOST_LAYERS:
        yield f"it has {len(spec.layers)} layers"
    yield from _sizes("", hidden_size=spec.hidden, vocab_size=spec.vocabulary)
    yield from _finite(eps=spec.norm.eps, logit_scale=spec.logit_scale, logit_cap=spec.logit_cap)
    yield from _finite(embedding_scale=spec.embedding_scale)
    for index, layer in enumerate(spec.layers):
        mixer, of = layer.mixer, f" of layer {index}"
        if isinstance(mixer, Attention):
            yield from _attention(of, mixer)
            if mixer.shares is not None and any(one.shares is None for one in spec.attentions):
                yield from _sharing(of, mixer, spec.layers[:index])  # else it is an assistant, with a target's keys
        else:
            yield from _recurrent(of, mixer)
        yield from _finite(scale_of_the_mixer=layer.scales[0], scale_of_the_MLP=layer.scales[1])
        if layer.mlp is not None:
            yield from _mlp(of, layer.mlp)
    if spec.inputs is not None:
        yield from _sizes(" of inputs of layers", width=spec.inputs.width)


def _mistyped(part: Any, seen: set[int]) -> Iterator[str]:
    """Fields of a description, and of its parts, that should be numbers and are none. ``seen``: ids of the parts that
    were looked at: layers share many."""
    if id(part) in seen:
        return
    seen.add(id(part))
    for name, kind in _fields(part.__class__):
        value = getattr(part, name)
        if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            yield f"{name} of {type(part).__name__} is {value!r}"
        for one in value if isinstance(value, tuple) else (value,):
            if _fields(one.__class__):
                yield from _mistyped(one, seen)


@cache
def _fields(kind: type) -> tuple[tuple[str, tuple[type, ...] | None], ...]:
    """The fields of a part's class, and the types that those of them may have that are numbers; none: it is no part."""
    found = fields(kind) if is_dataclass(kind) else ()
    return tuple((field.name, NUMBERS.get(str(field.type))) for field in found)


def _sizes(of: str, **sizes: Any) -> Iterator[str]:
    for name, size in sizes.items():
        if not isinstance(size, int) or not 1 <= size <= MOST_SIZE:
            yield f"the {name.replace('_', ' ')}{of} is {size}"


def _finite(**numbers: float) -> Iterator[str]:
    for name, number in numbers.items():
        if not math.isfinite(number):
            yield f"the {name.replace('_', ' ')} is {number}"


def _attention(of: str, mixer: Attention) -> Iterator[str]:
    yield from _sizes(of, number_of_heads=mixer.heads, number_of_key_heads=mixer.kv_heads, head_width=mixer.width)
    if mixer.kv_heads > 0 and mixer.heads % mixer.kv_heads:
        yield f"{mixer.heads} heads{of} cannot share {mixer.kv_heads} of keys"
    if not 0 <= mixer.window <= MOST_POSITIONS:
        yield f"the window{of} is {mixer.window}"
    yield from _finite(scale=mixer.scale, cap=mixer.cap)
    if mixer.rotation is not None:
        yield from _rotation(of, mixer.rotation, mixer.width if mixer.latent is None else mixer.latent.turned)
    if (latent := mixer.latent) is not None:
        yield from _sizes(of, rank=latent.rank, turned_width=latent.turned, plain_width=latent.plain)
        yield from _sizes(of, value_width=latent.values)
        if latent.query_down is not None:
            yield from _sizes(of, rank_of_queries=latent.query_rank)
        if latent.turned % 2 or mixer.width != latent.rank + latent.turned:
            yield f"{latent.turned} dimensions{of} cannot be turned"
        if mixer.rotation is not None and 2 * len(mixer.rotation.frequencies) != latent.turned:
            yield f"{2 * len(mixer.rotation.frequencies)} of {latent.turned} dimensions{of} are turned"


def _rotation(of: str, turning: Rotation, width: int) -> Iterator[str]:
    if 2 * len(turning.frequencies) > width:
        yield f"{2 * len(turning.frequencies)} of {width} dimensions of a head{of} are turned"
    yield from _finite(factor_of_rotations=turning.factor)
    longer = turning.frequencies if turning.longer is None else turning.longer.frequencies
    if not all(map(math.isfinite, (*turning.frequencies, *longer))):
        yield f"the frequencies of rotations{of} are not finite"
    if len(longer) != len(turning.frequencies):
        yield f"rotations{of} have {len(turning.frequencies)} frequencies, and {len(longer)} for long texts"
    if turning.stretch is not None:
        yield from _finite(share_of_the_stretch=turning.stretch.share)
        if not 0 < turning.stretch.period < math.inf:
            yield f"the period of the stretch{of} is {turning.stretch.period}"


def _sharing(of: str, mixer: Attention, before: Sequence[Layer]) -> Iterator[str]:
    assert mixer.shares is not None
    owner = before[mixer.shares].attention if 0 <= mixer.shares < len(before) else None
    alike = owner is not None and (owner.kv_heads, owner.width) == (mixer.kv_heads, mixer.width)
    if owner is None or owner.shares is not None or not alike:
        yield f"the keys{of} cannot be those of layer {mixer.shares}"


def _recurrent(of: str, mixer: Recurrent) -> Iterator[str]:
    yield from _sizes(of, number_of_heads=mixer.heads, value_width=mixer.values, length_of_the_convolution=mixer.kernel)
    if mixer.kernel < 2 or mixer.kernel > 64:
        yield f"the length of the convolution{of} is {mixer.kernel}"
    if isinstance(mixer, ShortConvolution):
        return
    yield from _sizes(of, number_of_key_heads=mixer.groups, key_width=mixer.keys)
    if mixer.groups > 0 and (mixer.heads % mixer.groups or mixer.inner % mixer.groups):
        yield f"{mixer.heads} heads{of} cannot share {mixer.groups} of keys"
    if isinstance(mixer, Selective):
        yield from _sizes(of, rank_of_steps=mixer.rank)


def _mlp(of: str, mlp: Mlp | Experts) -> Iterator[str]:
    yield from _sizes(of, width_of_the_MLP=mlp.inner)
    if not isinstance(mlp, Experts):
        return
    if mlp.shared is not None:
        yield from _mlp(of, mlp.shared)
    routing = mlp.routing
    yield from _sizes(of, number_of_experts=mlp.count, number_of_groups_of_experts=routing.groups)
    if not 1 <= mlp.used <= mlp.count:
        yield f"{mlp.used} of {mlp.count} experts{of} are used"
    yield from _finite(scale_of_experts=routing.scale)
    if routing.groups < 1 or mlp.count % routing.groups:
        yield f"{mlp.count} experts{of} make no {routing.groups} groups"
    elif routing.groups > 1:
        size = mlp.count // routing.groups
        if not 1 <= routing.best <= size:
            yield f"{routing.best} scores rank a group of {size} experts{of}"
        if not 1 <= routing.used_groups <= routing.groups or mlp.used > routing.used_groups * size:
            yield f"{mlp.used} experts{of} are used out of {routing.used_groups} groups of {size}"
