"""The configs of the other tools that quantise, and the choice among all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from msgspec import UNSET, UnsetType

from actors.engines.weights.compressed_tensors import CompressedTensors
from actors.engines.weights.quantisation import (
    OTHERS,
    READ,
    ROW,
    TENSOR,
    TOOLS,
    Config,
    LayerForm,
    Scheme,
    Strict,
    is_among,
    method_in,
    pattern_of,
    read_struct,
    refused,
)
from protocols.errors import ModelError

# GPTQ and AWQ, of AutoGPTQ, GPTQModel, AutoAWQ, auto-round and optimum

HOW_IT_WAS_FOUND = (  # keys that say how numbers were found, or which kernels were meant to multiply them
    "act_bits act_data_type act_dynamic act_group_aware act_group_size act_sym adapter amp autoround_version backend "
    "batch_size block_name_to_quantize block_size cache_block_outputs damp_auto_increment damp_percent dataset device "
    "disable_exllama do_fuse enable_alg_ext enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input "
    "exllama_config failsafe fallback fuse_max_seq_len gradient_accumulate_steps hyb_act iters low_gpu_mem_usage lr "
    "max_input_length meta minmax_lr model_file_base_name model_name_or_path model_seqlen "
    "module_name_preceding_first_block modules_to_fuse mse nsamples offload_to_disk offload_to_disk_path pad_token_id "
    "parallel_packing provider quant_block_list quant_method scale_dtype seqlen static_groups super_bits "
    "super_group_size to_quant_block_names tokenizer train_bs true_sequential use_cuda_fp16 use_exllama v2"
)


class GptqOverride(Strict, frozen=True, forbid_unknown_fields=True):
    bits: Literal[2, 3, 4, 8] | UnsetType = UNSET
    group_size: int | UnsetType = UNSET
    sym: bool | UnsetType = UNSET
    desc_act: bool | UnsetType = UNSET


class GptqConfig(Strict, frozen=True, forbid_unknown_fields=True):
    bits: Literal[2, 3, 4, 8]
    group_size: int
    sym: bool = False  # a file that does not say it may have any zero points
    desc_act: bool = False
    checkpoint_format: Literal["gptq", "gptq_v2"] | None = None
    format: Literal["gptq", "gptq_v2"] | None = None
    method: Literal["gptq"] = "gptq"
    pack_dtype: Literal["int32", "torch.int32"] | None = None
    data_type: Literal["int"] = "int"
    packing_format: Literal["auto_round:auto_gptq", "auto_gptq"] | None = None
    is_marlin_format: Literal[False] | None = None
    lm_head: bool = False
    dynamic: dict[str, Any] | None = None
    modules_in_block_to_quantize: Any = None  # the file shows which were


Overrides = list[tuple[re.Pattern[str], GptqOverride | None]]  # None: the layer is left as it is


def _dynamic(where: str, tool: str, config: dict[str, Any] | None) -> Overrides:
    """Settings of layers by patterns, as GPTQModel writes them; ``-:`` before one leaves layers as they are."""
    overrides: Overrides = []
    for key, value in (config or {}).items():
        pattern = pattern_of(where, "dynamic", key[2:] if key[:2] in ("+:", "-:") else key)
        one = None
        if not key.startswith("-:"):
            one = read_struct(GptqOverride, where, tool, value, f"dynamic.{key}.", HOW_IT_WAS_FOUND)
        overrides.append((pattern, one))
    return overrides


@dataclass(frozen=True, slots=True)
class Gptq:
    config: GptqConfig | AutoRoundConfig | AwqConfig
    overrides: Overrides  # the first that matches counts
    kind: Literal["gptq", "gptq_v2", "awq"]
    tool: str = "gptq"
    miswritten: bool = False  # its tool may have stored zero points of 3 bits and of overrides as other numbers

    @classmethod
    def of(cls, where: str, config: Config) -> Gptq:
        if config.get("checkpoint_format") == "marlin" or config.get("is_marlin_format"):
            raise ModelError(
                f"the weights of {where} are packed for one GPU kernel (Marlin); choose a plain GPTQ checkpoint"
            )
        read = read_struct(GptqConfig, where, "gptq", config, without=HOW_IT_WAS_FOUND)
        overrides = _dynamic(where, "gptq", read.dynamic)
        if read.checkpoint_format == "gptq_v2":
            return cls(read, overrides, "gptq_v2")
        made = re.search(r"gptqmodel:(\d+)\.(\d+)(?:\.(\d+))?", str(config.get("meta")))
        before = made is not None and tuple(int(part or 0) for part in made.groups()) < (7, 3, 6)  # 5.8 to 7.0.0 do
        return cls(read, overrides, "gptq", miswritten=before)

    def form(self, layer: str) -> LayerForm | None:
        own = self.config
        bits, size = own.bits, own.group_size
        symmetric = not own.zero_point if isinstance(own, AwqConfig) else own.sym
        for pattern, override in self.overrides:
            if pattern.match(layer) is not None:
                if override is None:
                    return None
                bits = bits if override.bits is UNSET else override.bits
                size = size if override.group_size is UNSET else override.group_size
                symmetric = symmetric if override.sym is UNSET else override.sym
                break
        if self.miswritten and not symmetric and (bits == 3 or bits != own.bits):
            raise ModelError(
                f"{layer} has zero points of {bits} bits, which GPTQModel before 7.3.6 may have stored as other "
                "numbers; choose another checkpoint, or quantise the model with a newer one"
            )
        if self.kind == "awq" and bits != 4:
            raise refused(layer, f"AWQ of {bits} bits", READ["awq"])
        return LayerForm(self.kind, "integers", bits, (1, size) if size > 0 else ROW, not symmetric)


class AutoRoundOverride(GptqOverride, frozen=True, forbid_unknown_fields=True):
    data_type: Literal["int"] = "int"
    rotation_config: None = None


class AutoRoundConfig(Strict, frozen=True, forbid_unknown_fields=True):
    packing_format: Literal["auto_round", "auto_round:gptqmodel", "auto_round:auto_gptq", "auto_round:auto_awq"]
    bits: Literal[2, 3, 4, 8]
    group_size: int
    sym: bool = True
    data_type: Literal["int"] = "int"
    extra_config: dict[str, dict[str, Any]] | None = None
    rotation_config: None = None


PACKED: dict[str, Literal["gptq", "awq"]] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}


def auto_round(where: str, config: Config) -> Gptq:
    """auto-round's own format: the words of GPTQ, and settings of layers by their names or patterns."""
    name = "auto-round"
    read = read_struct(AutoRoundConfig, where, name, config, without=HOW_IT_WAS_FOUND)
    said = sorted((read.extra_config or {}).items(), key=lambda item: ".*" in item[0])  # names go before patterns
    overrides: Overrides = []
    for key, value in said:
        pattern = pattern_of(where, "extra_config", key if ".*" in key else re.escape(key) + "$")
        one = None
        if value.get("bits") not in (16, 32):  # numbers
            one = read_struct(AutoRoundOverride, where, name, value, f"extra_config.{key}.", HOW_IT_WAS_FOUND)
        overrides.append((pattern, one))
    return Gptq(read, overrides, PACKED.get(read.packing_format, "gptq_v2"), name)


class QuarkExport(Strict, frozen=True, forbid_unknown_fields=True):
    """What Quark says of its exports for other tools. Keys and values are kept as they are computed."""

    weight_format: Literal["real_quantized"]
    pack_method: Literal["reorder"]
    weight_merge_groups: None = None
    kv_cache_group: Any = None
    min_kv_scale: Any = None


class AwqConfig(Strict, frozen=True, forbid_unknown_fields=True):
    bits: Literal[4]
    group_size: int
    zero_point: bool = True
    sym: bool | None = None
    version: Literal["gemm"] | None = None
    format: Literal["gemm"] | None = None
    checkpoint_format: Literal["gemm"] | None = None
    method: Literal["awq"] = "awq"
    pack_dtype: Literal["int32", "torch.int32"] | None = None
    data_type: Literal["int"] = "int"
    packing_format: Literal["auto_round:auto_awq", "auto_awq"] | None = None
    desc_act: Literal[False] | None = None
    lm_head: bool = False
    modules_to_not_convert: list[str] | None = None
    dynamic: dict[str, Any] | None = None
    pack_method: Literal["reorder"] | None = None
    export: QuarkExport | None = None


def awq(where: str, config: Config) -> Gptq:
    renamed = {OLD_AWQ.get(key, key): value for key, value in config.items()}
    if isinstance(version := renamed.get("version"), str):
        renamed["version"] = version.lower()
    read = read_struct(AwqConfig, where, "awq", renamed, without=HOW_IT_WAS_FOUND)
    left: Overrides = [
        (re.compile(rf"(.*\.)?{re.escape(name)}(\..*)?$"), None) for name in read.modules_to_not_convert or ()
    ]
    return Gptq(read, [*left, *_dynamic(where, "awq", read.dynamic)], "awq", "awq")


OLD_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}  # keys in quant_config.json


# FP8, as DeepSeek, Qwen and Mistral publish it, and of AutoFP8


class Fp8(Strict, frozen=True, forbid_unknown_fields=True):
    tool: ClassVar[str] = "fp8"
    weight_block_size: tuple[int, int] | None = None
    fmt: Literal["e4m3", "e4m3fn", "float8_e4m3fn"] | None = None
    scale_fmt: Literal["ue8m0", "float"] | None = None  # powers of two, stored as numbers
    activation_scheme: Literal["dynamic", "static"] | None = None
    expert_dtype: Literal["fp8"] | None = None
    modules_to_convert: None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None
    dequantize: bool = False  # asks transformers to
    kv_cache_scheme: Any = None  # keys and values are kept as they are computed
    kv_cache_quant_method: Any = None
    export: QuarkExport | None = None
    bits: Literal[8] = 8  # auto-round says it too, with the rest of its words
    data_type: Literal["fp"] = "fp"
    sym: Literal[True] = True
    group_size: tuple[int, int] | None = None

    @classmethod
    def of(cls, where: str, config: Config) -> Fp8:
        if "weight_scale_semantics" in config:
            found = f"weight_scale_semantics {config['weight_scale_semantics']!r}"
            raise refused(where, f"{found} in its quantization_config of fp8, as GPTQModel writes it", READ[cls.tool])
        read = read_struct(cls, where, cls.tool, config, without=HOW_IT_WAS_FOUND)
        if read.group_size not in (None, read.weight_block_size):
            found = f"group_size {read.group_size} beside another weight_block_size"
            raise refused(where, f"{found} in its quantization_config of fp8", READ[cls.tool])
        return read

    def form(self, layer: str) -> LayerForm | None:
        if is_among(layer, [*(self.modules_to_not_convert or ()), *(self.ignored_layers or ())]):
            return None
        return LayerForm("scaled", "floats", 8, self.weight_block_size)


# modelopt of NVIDIA

Algorithm = Literal[
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "NVFP4",
    "W4A16_NVFP4",
    "MXFP8",
    "W8A8_SQ_PER_CHANNEL",
    "W8A16",
    "MIXED_PRECISION",
]
MODELOPT: dict[str, LayerForm] = {
    "FP8": LayerForm("scaled", "floats", 8, TENSOR),
    "FP8_PER_CHANNEL_PER_TOKEN": LayerForm("scaled", "floats", 8, ROW),
    "NVFP4": LayerForm("nvfp4", "NVFP4", 4, (1, 16)),
    "W4A16_NVFP4": LayerForm("nvfp4", "NVFP4", 4, (1, 16)),
    "MXFP8": LayerForm("mxfp8", "MXFP8", 8, (1, 32)),
    "W8A8_SQ_PER_CHANNEL": LayerForm("scaled", "integers", 8, ROW),
    "W8A16": LayerForm("scaled", "integers", 8, ROW),
}


class ModeloptLayer(Strict, frozen=True, forbid_unknown_fields=True):
    quant_algo: Algorithm
    group_size: int | None = None
    has_zero_point: Literal[False] = False
    pre_quant_scale: Literal[False] = False


class ModeloptNumbers(Strict, frozen=True, forbid_unknown_fields=True):
    num_bits: Literal[4, 8]
    type: Literal["int", "float"]
    dynamic: bool = False
    strategy: Literal["tensor", "channel", "token", "group", "tensor_group"] | None = None
    group_size: int | None = None


class ModeloptGroup(Strict, frozen=True, forbid_unknown_fields=True):
    """What quant_algo says too, but for groups of a size that the tool was asked for."""

    targets: list[str]
    weights: ModeloptNumbers | None = None
    input_activations: Any = None  # inputs are computed with as they are, which rounds less
    has_zero_point: Literal[False] = False
    pre_quant_scale: Literal[False] = False


class Modelopt(Strict, frozen=True, forbid_unknown_fields=True):
    tool: ClassVar[str] = "modelopt"
    quant_algo: Algorithm
    group_size: int | None = None
    has_zero_point: Literal[False] = False
    pre_quant_scale: Literal[False] = False
    kv_cache_quant_algo: str | None = None  # keys and values are kept as they are computed
    kv_cache_scheme: Any = None
    exclude_modules: list[str] | None = None
    ignore: list[str] | None = None
    quantized_layers: dict[str, ModeloptLayer] | None = None
    config_groups: dict[str, ModeloptGroup] | None = None

    @classmethod
    def of(cls, where: str, config: Config) -> Modelopt:
        read = read_struct(cls, where, cls.tool, config, without="quant_method producer")
        for key, group in (read.config_groups or {}).items():
            if (numbers := group.weights) is not None:
                _grouped(where, f"config_groups.{key}.weights.", numbers, 16 if numbers.num_bits == 4 else 32)
        layers = {f"quantized_layers.{key}.": layer for key, layer in (read.quantized_layers or {}).items()}
        every: dict[str, Modelopt | ModeloptLayer] = {"": read, **layers}
        for key, one in every.items():
            form = MODELOPT.get(one.quant_algo)
            _grouped(where, key, one, 0 if form is None or form.block is None else form.block[1])
        return read

    def form(self, layer: str) -> LayerForm | None:
        for name in [*(self.exclude_modules or ()), *(self.ignore or ())]:
            if re.fullmatch(re.escape(name).replace(r"\*", ".*"), layer) or layer.startswith(f"{name}."):
                return None
        if self.quant_algo != "MIXED_PRECISION":
            return MODELOPT[self.quant_algo]
        found = (self.quantized_layers or {}).get(layer)
        return None if found is None else MODELOPT.get(found.quant_algo)


def _grouped(where: str, key: str, config: Modelopt | ModeloptLayer | ModeloptNumbers, said: int) -> None:
    """Raise ModelError for groups of another size than the algorithm's."""
    if said and config.group_size not in (None, 0, said):
        found = f"{key}group_size {config.group_size} in its quantization_config of modelopt"
        raise refused(where, found, "NVFP4 in groups of 16 or MXFP8 in groups of 32")


# bitsandbytes


BNB_COMPUTES = (  # what products are computed with; a threshold parts off columns of inputs, which rounds less
    "quant_method _load_in_4bit _load_in_8bit bnb_4bit_compute_dtype llm_int8_enable_fp32_cpu_offload "
    "llm_int8_has_fp16_weight llm_int8_threshold"
)


class Bitsandbytes(Strict, frozen=True, forbid_unknown_fields=True):
    tool: ClassVar[str] = "bitsandbytes"
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "fp4"
    bnb_4bit_quant_storage: Literal["uint8", "int8", "bfloat16", "float16", "float32"] = "uint8"
    bnb_4bit_use_double_quant: bool = False
    llm_int8_skip_modules: list[str] | None = None

    def form(self, layer: str) -> LayerForm | None:
        if self.load_in_8bit:
            return LayerForm("bnb8", "integers", 8, ROW)
        return LayerForm("bnb4", self.bnb_4bit_quant_type, 4)


# MXFP4 of gpt-oss


class Mxfp4(Strict, frozen=True, forbid_unknown_fields=True):
    tool: ClassVar[str] = "mxfp4"
    modules_to_not_convert: list[str] | None = None
    dequantize: bool = False  # asks transformers to

    def form(self, layer: str) -> LayerForm | None:
        return None  # experts are quantised alone


SCHEMES: dict[str, Callable[[str, Config], Scheme]] = {
    "compressed-tensors": CompressedTensors.of,
    "gptq": Gptq.of,
    "auto-round": auto_round,
    "awq": awq,
    "fp8": Fp8.of,
    "modelopt": Modelopt.of,
    "bitsandbytes": lambda where, config: read_struct(
        Bitsandbytes, where, Bitsandbytes.tool, config, without=BNB_COMPUTES
    ),
    "mxfp4": lambda where, config: read_struct(Mxfp4, where, Mxfp4.tool, config, without="quant_method"),
}


def scheme_of(where: str, config: Config) -> Scheme:
    """What a ``quantization_config`` says. ``where``: its file. Raises ModelError for all that is not known."""
    method = method_in(config)
    if method not in SCHEMES:
        tool = TOOLS.get(method, f"quant_method {method!r}" if method else "quantised weights of an unnamed tool")
        raise refused(where, tool, OTHERS)
    return SCHEMES[method](where, config)
