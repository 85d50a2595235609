"""GGUF architectures in the words of Hugging Face: the configuration and the names of the weights.

A file's metadata become what ``config.json`` says, and its tensors have the names and the order of rows that the
model's modules expect. So everything behind a checkpoint works with a GGUF file as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actors.engines.decoder.bounds import check_numbers
from actors.engines.weights.biases import check_biases
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.formats import KINDS
from actors.engines.weights.gguf import GGUF, Stored
from actors.engines.weights.gguf_architectures import ARCHITECTURES, MIXTURES, WITH_EYES
from actors.engines.weights.gguf_configs import Config
from actors.engines.weights.gguf_gpt import TWO_NORMS
from actors.engines.weights.gguf_makers import Floats, as_it_is, below, stacked
from actors.engines.weights.gguf_parts import Order
from protocols.errors import ModelError

OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
RECURRENT = "linear_attn."
FUSED = "ffn_gate_up_exps.weight"  # gates and ups of experts by the converter's --fuse-gate-up-exps
# Names of a layer for more tokens (MTP), which follows the others: DeepSeek's to the file's
NEXT = {"eh_proj": "nextn.eh_proj", "shared_head.norm": "nextn.shared_head_norm"}
NEXT |= {name: f"nextn.{name}" for name in ("enorm", "hnorm")}
LAYER = re.compile(r"model\.layers\.(\d+)\.")
# Mixtures of frequencies that checkpoints have: Llama 3 keeps wave lengths below 1/4 of its context, Llama 4
# Scout all below its context.
LLAMA3 = {"low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
HIGH = (4.0, 1.0)
STILL = 1e30  # what a frequency is divided by to be none, in Gemma 4
KEYS = re.compile(r"blk\.(\d{1,9})\.attn_k\.weight")  # what makes the keys of a layer
# Tensors that are no weights by our names: rotations, eyes and ears beside a text model, and layers for more tokens
ELSEWHERE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight|(v|a|mm)\..*|blk\.\d+\.nextn\..*")


@dataclass(frozen=True, slots=True)
class FileWeight:
    """A weight made of tensors of the file."""

    parts: list[Stored]
    make: Callable[..., Floats] | None = None  # maker of the numbers from its parts; None: there is one, as it is
    rows: Order | None = None
    above: float = 0.0  # what the file's numbers are above the model's

    @property
    def shape(self) -> tuple[int, ...]:
        own = self.parts[0].shape
        return own if self.rows is None else (len(self.rows), *own[1:])

    @property
    def is_made(self) -> bool:
        """Whether ``shape`` is that of a part alone."""
        return self.make is not None

    @property
    def name_in_file(self) -> str:
        return " and ".join(part.name for part in self.parts)

    def values(self) -> Floats:
        """Raises ModelError where the parts do not fit together."""
        parts = [part.values() for part in self.parts]
        if self.make is not None:
            try:
                return self.make(*parts)
            except (ValueError, IndexError):  # numpy's
                shapes = " and ".join(" x ".join(map(str, part.shape)) for part in self.parts)
                raise ModelError(f"{self.name_in_file} are {shapes}, which make no weight; download it again") from None
        values = parts[0] if self.rows is None else parts[0][self.rows]
        return values - np.float32(self.above) if self.above else values

    def blocks(self) -> list[Blocks] | None:
        """The matrix, or each expert's, whose parts stand one below the other."""
        if self.make in (None, below):
            whole = all(part.is_grouped() for part in self.parts)
            return [Blocks([(part, self.rows) for part in self.parts])] if whole else None
        if any(len(part.shape) != 3 for part in self.parts):
            return None
        if len({part.shape[::2] for part in self.parts}) > 1:  # see :meth:`values`
            return None
        experts = [[part.parted(expert) for part in self.parts] for expert in range(self.shape[0])]
        if not all(matrix.is_grouped() for matrices in experts for matrix in matrices):
            return None
        return [Blocks([(matrix, None) for matrix in matrices]) for matrices in experts]


# Numbers that change what a model computes, and the values with which they do not. Whoever computes one reads it.
IDLE: dict[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),  # a softmax
    "activation_sparsity_scale": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_beta_fast": (32,),
    "rope.scaling.yarn_beta_slow": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
}


class GGUFCheckpoint:
    """A GGUF file as a checkpoint: ``config`` and weights by the names of Hugging Face's modules."""

    def __init__(self, path: str | Path) -> None:
        """Raises ModelError for a file that cannot be read or has an unknown architecture."""
        self.file = GGUF(path)
        known = ARCHITECTURES.get(self.file.architecture)
        if known is None:
            raise ModelError(
                f"{path} has the architecture {self.file.architecture or 'unknown'}; "
                f"duoactor reads GGUF files of {', '.join(ARCHITECTURES)}"
            )
        mixture = self.file.of_architecture("expert_count", 0) != 0
        if self.file.of_architecture("rope.dimension_sections") is not None:
            known = WITH_EYES.get(self.file.architecture, known)
        if "blk.0.attn_norm_2.weight" in self.file.tensors:
            known = TWO_NORMS.get(self.file.architecture, known)
        self._known = MIXTURES.get(self.file.architecture, known) if mixture else known
        self._check_metadata()
        try:
            self.config = self._config()
            self._refuse_unread()
            self._weights = dict[str, FileWeight](self._found())
            self._refuse_unread_tensors()
            self._check_norms()
            check_biases(str(path), self.file.tensors.keys())
        except ModelError:
            raise
        except Exception as error:  # a value of another type, a list that is too short, a division by zero
            raise ModelError(
                f"the metadata of {path} do not describe a model of {self.file.architecture}: {type(error).__name__} "
                f"({error}); download it again"
            ) from None

    def _check_norms(self) -> None:
        """Raise ModelError for a norm of zeros: programs that take a file's room first leave them where they stop."""
        for part in (part for weight in self._weights.values() for part in weight.parts):
            if len(part.shape) == 1 and part.name.endswith("norm.weight") and not part.data.any():
                raise ModelError(
                    f"{part.name} in {self.file.path} holds nothing but zeros, as where a download has not ended; "
                    "download it again"
                )

    def _check_metadata(self) -> None:
        """Raise ModelError for numbers that no model has, and for one that each has and the file does not say."""
        begin, file = f"{self.file.architecture}.", self.file
        sizes = {key.removeprefix(begin): value for key, value in file.metadata.items() if key.startswith(begin)}
        if not any(key.endswith("_epsilon") for key in sizes):
            raise ModelError(f"{file.path} has no {begin}attention.layer_norm_rms_epsilon; download it again")
        check_numbers(
            str(file.path),
            {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in sizes.items()},
        )
        heads = np.atleast_1d(sizes.get(key := "attention.head_count_kv", 1))  # one for each layer, or one for all
        layers = sorted(int(found[1]) for found in map(KEYS.fullmatch, file.tensors) if found is not None)
        for layer in layers if heads.size else ():
            if heads[min(layer, heads.size - 1)] == 0:
                raise ModelError(
                    f"{file.path} has {begin}{key} = 0 for layer {layer} and a tensor blk.{layer}.attn_k.weight; "
                    "convert the model, with a config.json that names its layers as the published one does, anew"
                )
        tokens, rows = file.metadata.get("tokenizer.ggml.tokens", ()), self._stored("token_embd.weight").shape[0]
        if len(tokens) > rows:
            raise ModelError(
                f"{file.path} has {len(tokens)} tokens in tokenizer.ggml.tokens and {rows} rows in token_embd.weight; "
                "download it again"
            )

    def _refuse_unread(self) -> None:
        """Raise ModelError for a number that changes what a model computes and that this architecture does not read."""
        begin, said = f"{self.file.architecture}.", self.file.metadata
        width = said.get(f"{begin}attention.key_length", said.get(f"{begin}attention.value_length"))
        idle = {**IDLE, "attention.value_length": (width,)}
        if said.get(f"{begin}rope.scaling.type") == "yarn" and not said.get(f"{begin}rope.scaling.yarn_log_multiplier"):
            usual = 1 + 0.1 * np.log(max(said.get(f"{begin}rope.scaling.factor", 1.0), 1.0))  # the usual stretch
            idle["rope.scaling.yarn_attn_factor"] = (float(np.float32(usual)),)
        for key in idle.keys() - self.file.asked:
            found = said.get(begin + key)
            if found is not None and not set(np.atleast_1d(found).tolist()) <= set(idle[key]):
                raise ModelError(
                    f"{self.file.path} has {begin}{key} = {found}, which duoactor does not compute for this "
                    "architecture; choose a file without it, or the model's safetensors"
                )

    def _refuse_unread_tensors(self) -> None:
        """Raise ModelError for a tensor that this architecture has no name for."""
        read = {part.name for weight in self._weights.values() for part in weight.parts}
        left = sorted(name for name in self.file.tensors.keys() - read if not ELSEWHERE.fullmatch(name))
        if left:
            raise ModelError(
                f"{self.file.path} has {len(left)} tensors that duoactor does not know in the architecture "
                f"{self.file.architecture}, {left[0]} first; choose another file, or the model's safetensors"
            )

    def own(self, more: bool = False) -> dict[str, FileWeight]:
        """The weights of the model, or those of its layers for ``more`` tokens, which may be none."""
        return {name: weight for name, weight in self._weights.items() if self._is_more(name) is more}

    def _is_more(self, name: str) -> bool:
        found = LAYER.match(name)
        return found is not None and int(found[1]) >= self.config["num_hidden_layers"]

    @property
    def only_next(self) -> bool:
        """Whether there are layers for more tokens and no others, as llama.cpp's ``mtp-*.gguf`` have it."""
        return bool(self.own(True)) and not any(name.startswith("model.layers.0.") for name in self._weights)

    @property
    def kinds(self) -> str:
        """The kinds of blocks of its matrices, that with the most bytes first."""
        sizes: dict[str, int] = {}
        for one in self.file.tensors.values():
            if len(one.shape) > 1:
                sizes[one.kind.name] = sizes.get(one.kind.name, 0) + one.data.nbytes
        return ", ".join(sorted(sizes, key=lambda kind: -sizes[kind]))

    def side_by_side(self, name: str) -> Floats:
        """The same with value heads that share keys beside each other, as Hugging Face has them."""
        values, config = self._weights[name].values(), self.config
        if RECURRENT not in name or not config.get("tiled_value_heads"):
            return values
        width, keys = config["linear_value_head_dim"], config["linear_num_key_heads"] * config["linear_key_head_dim"]
        heads = np.arange(config["linear_num_value_heads"]).reshape(-1, config["linear_num_key_heads"]).T.reshape(-1)
        rows = (heads[:, None] * width + np.arange(width)).reshape(-1)
        match name.partition(RECURRENT)[2]:
            case "norm.weight":
                return values
            case "out_proj.weight":
                return np.ascontiguousarray(values[:, rows])
            case "in_proj_qkv.weight" | "conv1d.weight":
                heads = np.concatenate([np.arange(2 * keys), 2 * keys + rows])
            case "in_proj_z.weight":
                heads = rows
        return np.ascontiguousarray(values[heads])

    def constants(self) -> dict[str, float]:
        """What transformers' model has among its weights and every file of the architecture has equal."""
        layers, known = range(self._one("block_count")), self._known
        return {f"{known.layers}.{layer}.{part}": one for layer in layers for part, one in known.constants.items()}

    def name_in_file(self, ours: str) -> str:
        """A weight's name in the file, whether it is there or not."""
        known, (_, _, rest) = self._known, ours.partition(f"{self._known.layers}.")
        layer, _, part = rest.partition(".")
        name, _, kind = (part or ours).rpartition(".")
        if not part:
            theirs = (OUTSIDE | known.outside).get(name)
        elif part in known.made:
            return " and ".join(f"blk.{layer}.{one}" for one in known.made[part][0])
        else:
            theirs = (known.names | NEXT).get(name)
        return ours if theirs is None else f"blk.{layer}.{theirs}.{kind}" if part else f"{theirs}.{kind}"

    def _stored(self, name: str) -> Stored:
        if name not in self.file.tensors:
            raise ModelError(f"{self.file.path} has no tensor {name}; download it again")
        return self.file.tensors[name]

    def _found(self) -> Iterator[tuple[str, FileWeight]]:
        outside = {theirs: ours for ours, theirs in (OUTSIDE | self._known.outside).items()}  # the later name holds
        for theirs, ours in outside.items():
            yield from self._named(ours, theirs)
        for layer in range(self._one("block_count")):
            ours, theirs = f"{self._known.layers}.{layer}.", f"blk.{layer}."
            for part, key in self._known.numbers.items():
                yield ours + part, FileWeight([self._number(key, layer)])
            for part, (needed, make) in self._known.made.items():
                if make is stacked and f"{theirs}{FUSED}" in self.file.tensors:
                    needed, make = (FUSED,), as_it_is
                if theirs + needed[0] in self.file.tensors:
                    yield ours + part, FileWeight([self._stored(theirs + one) for one in needed], make)
            for part, name in (self._known.names | NEXT).items():
                yield from self._named(ours + part, theirs + name)

    def _number(self, key: str, layer: int) -> Stored:
        """A metadatum with a number for each layer as a weight."""
        found = np.atleast_1d(self.file.metadata.get(key, ()))
        if found.shape != (self._one("block_count"),):
            raise ModelError(f"{self.file.path} has no {key} of each layer; download it again")
        return Stored(key, (1,), KINDS[0], found[layer : layer + 1].astype("<f4").view(np.uint8))

    def _named(self, ours: str, theirs: str) -> Iterator[tuple[str, FileWeight]]:
        for kind in ("weight", "bias"):
            if (found := self.file.tensors.get(f"{theirs}.{kind}")) is not None:
                is_norm = kind == "weight" and len(found.shape) == 1 and RECURRENT not in ours
                above = float(self._known.offset and is_norm)
                yield f"{ours}.{kind}", FileWeight([found], None, self._order(ours, found), above)

    def _order(self, ours: str, found: Stored) -> Order | None:
        """The rows that are its own, and those in the order of a rotation of halves where the file has neighbours."""
        part = ours.split(".", 3)[-1]
        if part in self._known.rows:
            rows = self._known.rows[part](self.config)
            if rows.max(initial=0) >= found.shape[0]:
                raise ModelError(
                    f"tensor {found.name} of {self.file.path} has {found.shape[0]} rows, and its metadata say "
                    f"{rows.max() + 1} at least; download it again"
                )
            return rows
        if not self._known.turned or not part.endswith(("q_proj", "k_proj")):
            return None
        heads = self.config["num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"]
        if found.shape[0] % (2 * heads):
            raise ModelError(
                f"tensor {found.name} of {self.file.path} has {found.shape[0]} rows, which {heads} heads cannot share; "
                "download it again"
            )
        rows = np.arange(found.shape[0]).reshape(heads, -1, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    def _config(self) -> Config:
        file, known = self.file, self._known
        of, ids = file.of_architecture, file.metadata
        heads, hidden = self._one("attention.head_count"), self._one("embedding_length")
        width = of("attention.key_length", hidden // max(heads, 1))
        config: Config = {
            "model_type": known.model_type,
            "hidden_size": hidden,
            "num_hidden_layers": self._one("block_count") - of("nextn_predict_layers", 0),
            "intermediate_size": self._one("feed_forward_length", of("expert_feed_forward_length")),
            "num_attention_heads": heads,
            "num_key_value_heads": self._one("attention.head_count_kv", heads),
            "head_dim": width,
            "hidden_act": "silu",
            "rms_norm_eps": of("attention.layer_norm_rms_epsilon", 1e-6),
            "max_position_embeddings": self._one("context_length"),
            "vocab_size": self._stored("token_embd.weight").shape[0],
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "bos_token_id": ids.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": ids.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": ids.get("tokenizer.ggml.padding_token_id"),
            "dtype": self._dtype(),
            "rope_parameters": self._rope(width),
        }
        if "blk.0.attn_q.bias" in file.tensors:
            config["attention_bias"] = True
        return config | known.config(file, config)

    def _dtype(self) -> str:
        """In what the weights that are computed are kept: the bits that 16-bit files have, else bfloat16."""
        kinds = {stored.kind.name for stored in self.file.tensors.values() if len(stored.shape) > 1}
        return {"F32": "float32", "F16": "float16"}.get(min(kinds), "bfloat16") if len(kinds) == 1 else "bfloat16"

    def _one(self, key: str, default: int | None = None) -> int:
        """A number that all layers share."""
        found = self.file.of_architecture(key, default)
        values = set(np.atleast_1d(found).tolist()) if found is not None else set()
        if key in self._known.varied and values:
            return int(max(values))
        if len(values) != 1:
            what = "is missing" if not values else "differs between layers"
            raise ModelError(
                f"{self.file.path}: {self.file.architecture}.{key} {what}, so duoactor cannot run the file"
            )
        value = values.pop()
        if not isinstance(value, int) or value < 1:
            raise ModelError(
                f"{self.file.architecture}.{key} in {self.file.path} is {value!r}, and a model has at least one; "
                "download it again"
            )
        return value

    def _rope(self, width: int) -> Config:
        of = self.file.of_architecture
        rope: Config = {"rope_type": "default", "rope_theta": of("rope.freq_base", 10_000.0)}
        turned = of("rope.dimension_count", width)
        if not 0 <= turned <= width:
            raise ModelError(
                f"rope.dimension_count in {self.file.path} is {turned}, and heads have {width} dimensions; "
                "download it again"
            )
        if turned != width:
            rope["partial_rotary_factor"] = turned / width
        kind, factor = of("rope.scaling.type", "none"), of("rope.scaling.factor", 1.0)
        before = of("rope.scaling.original_context_length", self._one("context_length"))
        if "rope_factors_long.weight" in self.file.tensors:
            both = {f"{name}_factor": self._stored(f"rope_factors_{name}.weight") for name in ("long", "short")}
            rope |= {name: weight.values().tolist() for name, weight in both.items()}
            rope |= {"rope_type": "longrope", "original_max_position_embeddings": before}
            if length := of("rope.scaling.attn_factor"):
                rope["attention_factor"] = length
        elif kind == "yarn":
            rope |= {"rope_type": kind, "factor": factor, "original_max_position_embeddings": before}
        elif kind == "linear" and factor != 1:
            rope |= {"rope_type": kind, "factor": factor}
        elif kind not in ("none", "linear"):
            raise ModelError(
                f"{self.file.path} has {self.file.architecture}.rope.scaling.type = {kind}, which duoactor does not "
                "compute; choose a file without it, or the model's safetensors"
            )
        if "rope_freqs.weight" in self.file.tensors:
            rope |= self._divided(rope["rope_theta"], width)
        return rope

    def _divided(self, base: float, width: int) -> Config:
        """By what each frequency is divided is a tensor in the file and a formula in Hugging Face's."""
        divisors = self._stored("rope_freqs.weight").values()
        if divisors.max() >= STILL:
            return {"rope_type": "proportional", "partial_rotary_factor": float((divisors == 1).mean())}
        factor, low, before = (
            float(divisors.max()),
            LLAMA3["low_freq_factor"],
            LLAMA3["original_max_position_embeddings"],
        )
        waves = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
        for high in HIGH:
            smooth = ((before / waves - low) / max(high - low, 1e-9)).clip(0, 1)
            expected = 1 / ((1 - smooth) / factor + smooth)
            if len(divisors) == len(expected) and np.allclose(divisors, expected, rtol=1e-3):
                return {"rope_type": "llama3", "factor": factor, **LLAMA3, "high_freq_factor": high}
        raise ModelError(f"{self.file.path} scales its rotation by factors of its own (rope_freqs), unlike Llama 3")
