"""The kind of draft head that a directory or hub id holds, or that a target's checkpoint has inside it. No torch:
``duoactor up`` asks before it starts an actor."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.engines.weights.faults import tensor_names
from protocols.errors import ModelError

if TYPE_CHECKING:
    from actors.engines.weights.gguf_models import GGUFCheckpoint

EAGLE3, GEMMA4, BLOCK = "EAGLE-3 head", "Gemma 4 assistant", "block drafter"
NEXT = "layer for more tokens"  # kind of a layer that a GGUF file has in addition to its target's
UNREAD = "head of a kind that duoactor does not compute"
# Heads of other kinds, by their model_type and by what their class begins with
OTHERS = {"medusa": "medusa", "hydra": "hydra", "mlp_speculator": "mlpspeculator", "eagle": "eaglellama"}


@dataclass(frozen=True, slots=True)
class MtpConvention:
    """A family's names for the parts of a layer for more tokens (MTP), and its inputs. A wrong one shows in the
    acceptance rate only."""

    prefix: str  # prefix of all names; ``{stage}``: the layer's number, ``{layer}``: the same after the target's
    block: str  # what the layer's own names begin with, after the prefix
    token_norm: str
    state_norm: str
    join: str
    last_norm: str
    token_first: bool = True  # order of what is joined
    reads_normed: bool = True  # the target's states after its last norm, or before
    recycles_normed: bool = True  # its own states are normed, too

    def prefix_of(self, stage: int, layers: int) -> str:
        """``layers``: of the target."""
        return self.prefix.format(stage=stage, layer=layers + stage)


# Qwen3-Next, 3.5 to 3.8: after the norm on both sides. Measured by LightLLM (#1402, Qwen3.5-0.8B, three steps): 2.74
# tokens a round for 1.80 with the states before it; llama.cpp #24025 has the same.
QWEN = MtpConvention(
    "mtp.", "layers.{stage}.", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "fc.weight", "norm.weight"
)
# DeepSeek V3, GLM 4.5 to 4.7: the checkpoints' own code hands on normed states (ROCm/ATOM #1742, vLLM #46075).
DEEPSEEK = MtpConvention(
    "model.layers.{layer}.", "", "enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"
)
# MiMo: the state first, and before the norm (exllamav3 #238).
MIMO = MtpConvention(
    "model.mtp_layers.{stage}.",
    *("", "token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"),
    token_first=False,
    reads_normed=False,
    recycles_normed=False,
)
CONVENTIONS = (QWEN, DEEPSEEK, MIMO)


def convention_in(names: Collection[str], layers: int) -> MtpConvention | None:
    """The convention by which a checkpoint with such names of tensors has a layer for more tokens; None: it has none.
    ``layers``: of the target."""
    for one in CONVENTIONS:
        if one.prefix_of(0, layers) + one.join in names:
            return one
    return None


def own_layer(place: str) -> MtpConvention | None:
    """The layer for more tokens of a target in a directory or a GGUF file; None also for what is no checkpoint."""
    if place.endswith(".gguf") and Path(place).is_file():
        file = _file(place)
        return None if file is None else convention_in(file.own(more=True), file.config["num_hidden_layers"])
    if not Path(place).is_dir():
        return None
    config = configuration(place)
    text = config.get("text_config") or config
    layers = text.get("num_hidden_layers")
    return convention_in(tensor_names(place), int(layers)) if layers else None


def _file(place: str) -> GGUFCheckpoint | None:
    from actors.engines.weights.gguf_models import GGUFCheckpoint

    try:
        return GGUFCheckpoint(place)
    except ModelError:  # whoever loads it says why it cannot be read
        return None


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of head that a ``config.json`` describes; empty: it is a whole model."""
    named = " ".join(config.get("architectures") or ()).lower()
    speculators, family = str(config.get("speculators_model_type", "")), str(config.get("model_type", ""))
    if "eagle3" in named or "peagle" in named or speculators in ("eagle3", "peagle"):
        return EAGLE3
    if family == NEXT:
        return NEXT
    if family.startswith("gemma4") and family.endswith("assistant"):
        return GEMMA4
    blocks = ("dflash", "dspark", "xpress")
    if any(kind in named or kind in speculators for kind in blocks) or "dflash_config" in config:
        return BLOCK
    return UNREAD if unread_kind(config) else ""


def unread_kind(config: Mapping[str, Any]) -> str:
    """The name of a kind of head that is not computed; empty: it is none, or another kind."""
    if kind := str(config.get("speculators_model_type", "")):
        return kind
    family, named = config.get("model_type"), " ".join(config.get("architectures") or ()).lower()
    return next((one for one, begin in OTHERS.items() if one == family or named.startswith(begin)), "")


def configuration(name: str) -> dict[str, Any]:
    """The ``config.json`` of a directory, or of a hub id that can be reached; empty: there is none."""
    if name.endswith(".gguf") and Path(name).is_file():
        checkpoint = _file(name)
        return {"model_type": NEXT} if checkpoint is not None and checkpoint.only_next else {}
    place = Path(name) / "config.json"
    if not Path(name).exists():
        place = _from_hub(name)
    try:
        found = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception:  # whoever loads it says why it cannot be reached
        return Path(name)
