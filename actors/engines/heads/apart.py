"""What a draft head shares with a target in another process: its ends, read of its checkpoint, on a CPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.decoder.cpu.trunk import CompiledTrunk
from actors.engines.decoder.layout import lay_out_ends
from actors.engines.engine import Trunk
from actors.engines.weights.loading import checkpoint_of, describe, serving_tokenizer
from actors.engines.weights.stored import StoredModel
from actors.models import ModelInfo
from protocols.errors import ModelError

CPU = torch.device("cpu")


def ends_of(name: str, threads: int) -> tuple[Trunk, ModelInfo]:
    """Embedding, last norm and output layer, and the facts of the target. Raises ModelError."""
    torch.set_num_threads(1)  # the team computes
    config, kernels = checkpoint_of(name).known_config(), compiled_kernels()
    spec = spec_of(config)
    if spec is None or kernels is None:
        raise ModelError(
            f"a head for {name} cannot run apart from it: its family, or this processor, has no compiled layers; name "
            "the head to the verifier, by --inline-draft"
        )
    source, generation = checkpoint_of(name).ends()
    ends = lay_out_ends(spec, source)
    team = kernels.Team(threads - 1)
    made = CompiledTrunk(ends, team, Panels(ends.head, team))
    model = StoredModel(config, source, generation=generation)
    info = describe(name, model, serving_tokenizer(name), CPU, "float32")
    return replace(made.trunk(), layers=len(spec.layers)), info
