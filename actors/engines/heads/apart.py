"""What a draft head shares with a target in another process: its ends, read of its checkpoint, on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.decoder.cpu.trunk import CompiledTrunk
from actors.engines.decoder.layout import lay_out_ends
from actors.engines.engine import Trunk
from actors.engines.weights.faults import quantisation_of
from actors.engines.weights.gguf_loading import file_source
from actors.engines.weights.gguf_names import is_gguf
from actors.engines.weights.hub import located
from actors.engines.weights.loading import describe, known_config, serving_tokenizer
from actors.engines.weights.quantised import read_weights
from actors.engines.weights.source import StoredSource, StoredWeight
from actors.engines.weights.stored import StoredModel, generation_of
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.engines.weights.unneeded import LAYER
from actors.models import ModelInfo
from protocols.errors import ModelError

CPU = torch.device("cpu")


def ends_of(name: str, threads: int) -> tuple[Trunk, ModelInfo]:
    """Embedding, last norm and output layer, and the facts of the target. Raises ModelError."""
    torch.set_num_threads(1)  # the team computes
    config, kernels = known_config(name), compiled_kernels()
    spec = spec_of(config)
    if spec is None or kernels is None:
        raise ModelError(
            f"a head for {name} cannot run apart from it: its family, or this processor, has no compiled layers; name "
            "the head to the verifier, by --inline-draft"
        )
    generation = None
    if is_gguf(name):
        source = file_source(name, torch.float32)
    else:
        directory = Path(located(name))
        stored, generation = TensorFiles(weight_files(directory)), generation_of(directory)
        weights: Mapping[str, Tensor | StoredWeight] = stored
        if (scheme := quantisation_of(directory)) is not None:
            outside = {key: stored[key] for key in stored if LAYER.search(key) is None}
            weights = dict(read_weights(outside, scheme))
        source = StoredSource(name, weights, torch.float32)
    ends = lay_out_ends(spec, source)
    team = kernels.Team(threads - 1)
    made = CompiledTrunk(ends, team, Panels(ends.head, team))
    model = StoredModel(config, source, generation=generation)
    info = describe(name, model, serving_tokenizer(name), CPU, "float32")
    return replace(made.trunk(), layers=len(spec.layers)), info
