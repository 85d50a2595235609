"""``/api/tags``, ``/api/ps``, ``/api/show`` and ``/api/version``: the served model as Ollama describes one."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from duoactor.serve.answers import stamp
from duoactor.serve.errors import bad
from duoactor.serve.gateway import Model
from duoactor.serve.ollama.requests import USUAL
from protocols.messages import DEFAULTED, UNCHANGED, StatusReport

SPOKEN = "0.33.0"  # the version of Ollama that has this API; editors check it before they use an API
FOREVER = "9999-12-31T23:59:59Z"  # nothing unloads the model of a gateway that has one
FAMILY = "duoactor"  # clients read the context's length from ``model_info``, under the architecture's name


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    name: str = ""  # what older clients say for it
    verbose: bool = False

    def __post_init__(self) -> None:
        if not (self.model or self.name):
            raise bad("model", "is missing")


class Details(msgspec.Struct, frozen=True):
    """Empty where it is not known here."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization_level: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A model. ``size``: the bytes of its weights that a token's forward reads; 0: not known."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: Details = Details()


class Running(Listed, frozen=True, kw_only=True):
    expires_at: str = FOREVER
    size_vram: int = 0
    context_length: int


class Tags(msgspec.Struct, frozen=True):
    models: list[Listed]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    modified_at: str
    template: str
    parameters: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modelfile: str = ""
    license: str = ""


def tagged(name: str) -> str:
    """The name with a tag, as Ollama lists names."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def unloaded(names: Iterable[str]) -> Tags:
    """Models of which nothing but the name is known."""
    return Tags([_listed(name) for name in names])


def shown_unloaded(name: str) -> ModelCard:
    """What is known of a model that is not loaded."""
    info = {"general.architecture": FAMILY, "general.basename": name}
    return ModelCard(
        modified_at=stamp(),
        template="",
        parameters="",
        details=Details(),
        model_info=info,
        capabilities=["completion", "tools"],
    )


def tags(model: Model, report: StatusReport) -> Tags:
    return Tags([_listed(name, model, report) for name in model.names])


def running(model: Model, report: StatusReport) -> dict[str, list[Running]]:
    listed = _listed(model.names[0], model, report)
    on_gpu = listed.size if report.target.device.startswith("cuda") else 0
    known = msgspec.structs.asdict(listed)
    return {"models": [Running(**known, size_vram=on_gpu, context_length=model.max_context)]}


def show(model: Model, report: StatusReport, template: str, fills: bool) -> ModelCard:
    sampling = model.sampling_by(USUAL)
    named = ((name, getattr(sampling, name), getattr(UNCHANGED, name)) for name in DEFAULTED)
    also = [name for name, has in (("thinking", model.calling.thinking.begin), ("insert", fills)) if has]
    renamed = {"repetition_penalty": "repeat_penalty"}
    return ModelCard(
        modified_at=stamp(report.uptime_ms),
        template=template,
        parameters="\n".join(f"{renamed.get(name, name):<30} {value}" for name, value, idle in named if value != idle),
        details=_details(model),
        model_info={
            "general.architecture": FAMILY,
            "general.basename": model.names[0],
            f"{FAMILY}.context_length": model.max_context,
            f"{FAMILY}.vocab_size": model.vocab_size,
        },
        capabilities=["completion", "tools", *also],
    )


def _listed(name: str, model: Model | None = None, report: StatusReport | None = None) -> Listed:
    identity = "" if model is None else model.identity
    return Listed(
        name=tagged(name),
        model=tagged(name),
        modified_at=stamp(0.0 if report is None else report.uptime_ms),
        size=0 if report is None else report.target.reading.read_bytes,
        digest=sha256((identity or name).encode()).hexdigest(),
        details=_details(model),
    )


def _details(model: Model | None) -> Details:
    return Details() if model is None else Details(quantization_level=model.dtype)
