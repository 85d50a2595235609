"""Quantisation configs, strictly: each key and value of each tool is known here by name, or the checkpoint is refused.

No torch: ``duoactor up`` checks its models before it starts an actor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from protocols.errors import ModelError

Config = Mapping[str, Any]
T = TypeVar("T", bound=Struct)
STEP = re.compile(r"\[(?:\.\.\.|(?P<index>\d+))\]|\.?(?P<key>[^.\[]+)")  # the first of a path, as msgspec writes it
ALL = 0  # block size that means all rows or inputs of the matrix
ROW, TENSOR = (1, ALL), (ALL, ALL)


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """Other keys are refused."""


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How the numbers of one layer are stored. ``block``: rows and inputs with one scale; None: the file says it."""

    kind: Literal["packed", "scaled", "mxfp8", "mxfp4", "nvfp4", "gptq", "gptq_v2", "awq", "bnb4", "bnb8"]
    numbers: str
    bits: int
    block: tuple[int, int] | None = None
    zeros: bool = False  # groups have zero points

    def __str__(self) -> str:
        match self.block:
            case None:
                scales = ""
            case (0, 0):
                scales = ", one scale"
            case (1, 0):
                scales = ", a scale for each row"
            case (1, inputs):
                scales = f", a scale for each {inputs} inputs"
            case (rows, inputs):
                scales = f", a scale for each block of {rows} x {inputs}"
        return f"{self.numbers} of {self.bits} bits{scales}" + (" with zero points" if self.zeros else "")


class Scheme(Protocol):
    """What a checkpoint's config says of its layers."""

    @property
    def tool(self) -> str: ...

    def form(self, layer: str) -> LayerForm | None:
        """How a layer is stored, by its name without ``.weight``. None: as plain numbers. Raises ModelError."""
        ...


READ = {
    "compressed-tensors": "pack-, int-, float- and naive-quantized, NVFP4, MXFP4 and MXFP8",
    "gptq": "GPTQ of 2, 3, 4 and 8 bits in the checkpoint formats gptq and gptq_v2",
    "awq": "AWQ of 4 bits and version gemm",
    "auto-round": "integers of 2, 3, 4 and 8 bits, or its formats auto_gptq, auto_awq and llm_compressor",
    "fp8": "FP8 with scales of tensors, rows or blocks, by which weights are multiplied",
    "modelopt": "modelopt's FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, MXFP8 and INT8, alone or without smoothing",
    "bitsandbytes": "nf4, fp4 and int8 of bitsandbytes",
    "mxfp4": "gpt-oss as it was published",
}
OTHERS = "compressed-tensors, GPTQ, AWQ, FP8, bitsandbytes or modelopt, or a GGUF file"
TOOLS = {  # tools that are refused, by their method
    "aqlm": "AQLM",
    "bitnet": "BitNet",
    "eetq": "EETQ",
    "exl2": "ExLlamaV2",
    "exl3": "ExLlamaV3",
    "fbgemm_fp8": "FBGEMM",
    "fp_quant": "FP-Quant",
    "gguf": "GPTQModel in the layout of GGUF",
    "higgs": "HIGGS",
    "hqq": "HQQ",
    "quanto": "quanto",
    "quark": "Quark",
    "sinq": "SINQ",
    "spqr": "SpQR",
    "torchao": "torchao",
    "vptq": "VPTQ",
}


def refused(where: str, found: str, read: str) -> ModelError:
    return ModelError(f"{where} has {found}, which duoactor does not read; choose a checkpoint with {read}")


def method_in(config: Config) -> str:
    """The tool that a config is of; "": it does not say."""
    if "quant_method" not in config:
        return "modelopt" if "quant_algo" in config else ""
    name = str(config["quant_method"]).removeprefix("intel/")
    return "modelopt" if name in ("modelopt_fp4", "modelopt_mixed") else name


def read_struct(kind: type[T], where: str, tool: str, config: Config, prefix: str = "", without: str = "") -> T:
    """A config as a struct. ``prefix``: its place in the whole; ``without``: names of keys that change nothing."""
    if not isinstance(config, Mapping):
        raise refused(where, f"{prefix or 'a quantization_config '}{config!r} of {tool}", READ[tool])
    told = {key: value for key, value in config.items() if key not in without.split()}
    try:
        return msgspec.convert(told, kind, strict=True)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        path = prefix + (place.rstrip("`") or ".").removeprefix(".")
        if (unknown := re.search("unknown field `(.*)`", problem)) is not None:
            found = f"the key {f'{path}.{unknown[1]}'.lstrip('.')}"
        elif (lacking := re.search("missing required field `(.*)`", problem)) is not None:
            key = f"{path}.{lacking[1]}".lstrip(".")
            raise ModelError(
                f"{where} has no {key} in its quantization_config of {tool}, without which duoactor does not know how "
                f"its numbers are stored; choose a checkpoint with {READ[tool]}"
            ) from None
        else:
            found = f"{path} {_at(told, path.removeprefix(prefix))!r}"
        raise refused(where, f"{found} in its quantization_config of {tool}", READ[tool]) from None


def _at(config: Any, path: str) -> Any:
    """What stands at a path such as ``weights.num_bits``, ``layers[1]`` or, of several, ``layers[...].bits``."""
    step = STEP.match(path)
    if step is None:
        return config
    rest = path[step.end() :]
    if step[0] == "[...]":
        each = config.values() if isinstance(config, Mapping) else config
        return ", ".join(sorted({str(_at(one, rest)) for one in each}))
    if step["index"] is not None:
        return _at(config[int(step["index"])], rest)
    return _at(config[step["key"]], rest) if isinstance(config, Mapping) and step["key"] in config else config


def pattern_of(where: str, key: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ModelError(f"{key} in {where} has {text!r}, which is no pattern: {error}; download it again") from None


def is_among(layer: str, names: Iterable[str]) -> bool:
    """Whether a list of unquantised modules names the layer or a module that holds it."""
    return any(
        layer == name or layer.startswith(f"{name}.") or layer.endswith(f".{name}") or f".{name}." in f".{layer}."
        for name in names
    )
