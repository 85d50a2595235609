"""A model's weights and sizes in the records that compiled code reads by address."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.cpu.panels import Panels
from actors.engines.decoder.cpu.records import (
    CENTRED,
    EXPERTS,
    IN_BLOCKS,
    INPUTS,
    JOB,
    LATENT,
    LAYER,
    MIXER,
    NORM,
    PLAIN,
    RMS,
)
from actors.engines.decoder.cpu.streams import numbers_of
from actors.engines.decoder.layout import (
    Affine,
    DecoderWeights,
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    RecurrentWeights,
)
from actors.engines.decoder.spec import (
    ACTIVATIONS,
    RECURRENT,
    Attention,
    DeltaNet,
    Experts,
    Latent,
    Recurrent,
    Scan,
    Selective,
    ShortConvolution,
)
from actors.engines.weights.huge_pages import HugePages
from actors.engines.weights.matrix import Matrix

Record = NDArray[Any]  # an array of a structured type, or one of its elements


class LaidOut:
    """``layers``, ``jobs`` and ``sizes``: see :mod:`actors.engines.decoder.cpu.kernels`."""

    def __init__(self, weights: DecoderWeights, team: Any, int8: bool) -> None:
        """``int8``: see :class:`Panels`."""
        self._team, self._int8 = team, int8
        self._kind, self._eps = CENTRED if weights.spec.norm.centred else RMS, weights.spec.norm.eps
        self._pages = HugePages()
        self._kept: list[object] = []  # arrays that the records hold addresses of
        self.mixers: list[Record] = []  # records of recurrent layers
        self.width = 0  # numbers that a row puts into one of them
        self.read_bytes = 0  # by a token
        self._experts: list[tuple[int, int, int]] = []  # apart: rows of router, gate and up, and down
        self.jobs: Record = np.zeros(4 * len(weights.layers) + 1, dtype=JOB)
        self.layers: Record = np.zeros(len(weights.layers) + 1, dtype=LAYER)
        for index, layer in enumerate(weights.layers):
            self._lay_out(layer, self.layers[index], self.jobs[4 * index : 4 * index + 4])
        self.inputs = self._inputs(weights)
        self.head = self._product(self.jobs[-1:], weights.head)
        self.norm(self.layers[-1]["inputs"], weights.norm, weights.spec.logit_scale)
        self.sizes = self._sizes(weights)

    def keep(self, array: NDArray[Any]) -> int:
        """Address of an array, which lives as long as this object."""
        self._kept.append(array)
        return array.ctypes.data

    def table(self, matrix: Matrix, shared: bool) -> tuple[int, int]:
        """Form of the embeddings, and their address. ``shared``: the head has the same blocks."""
        if matrix.blocks is None:
            half = matrix.weight.bfloat16()
            exact = torch.equal(half.to(matrix.weight.dtype), matrix.weight)  # half the memory where that loses nothing
            table = half.contiguous() if exact else matrix.weight.float().contiguous()
            self._kept.append(table)
            return int(exact), table.data_ptr()
        job = self.jobs[-1:]
        if not shared:
            self._kept.append(panels := Panels(matrix, self._team))
            job = panels.job
        return IN_BLOCKS, job.ctypes.data

    def _product(self, job: Record, matrix: Matrix, exact: bool = False) -> Panels:
        """Write the job of a matrix. ``exact``: weights are not rounded."""
        panels = Panels(matrix, self._team, self._int8 and not exact, self._pages)
        self._kept.append(panels)
        self.read_bytes += panels.size
        job[0] = panels.job[0]
        return panels

    def _numbers(self, tensor: Tensor | None) -> int:
        """Address of float32 numbers; 0: there are none."""
        return 0 if tensor is None else self.keep(tensor.float().contiguous().numpy())

    def norm(self, norm: Any, affine: Affine, scale: float = 1.0) -> None:
        norm["weight"] = self._numbers(affine.weight.float() * scale)
        norm["bias"] = self._numbers(None if affine.bias is None else affine.bias.float() * scale)
        norm["kind"] = self._kind

    def _lay_out(self, weights: LayerWeights, layer: Any, jobs: Record) -> None:
        mixer, mlp, parallel = weights.spec.mixer, weights.spec.mlp, weights.spec.parallel
        for place, matrix in enumerate((weights.qkv, weights.out, weights.up, weights.down)):
            if matrix is not None:
                self._product(jobs[place : place + 1], matrix)
        found = weights.norms
        norms = {"inputs": found.attention, "inner": found.mlp, "behind": found.behind_attention}
        norms["last"] = found.behind_mlp
        shares = parallel and found.mlp is None
        for name, affine in norms.items():
            if affine is not None:
                self.norm(layer[name], affine)
            elif name in ("inputs", "inner") and not shares:  # copied as it is
                self.norm(layer[name], Affine(torch.ones(weights.qkv.weight.shape[1])))
                layer[name]["kind"] = PLAIN
        layer["parallel"], layer["shares"], layer["rereads"] = parallel, shares, weights.spec.rereads
        layer["factor"], (layer["mixer_scale"], layer["mlp_scale"]) = weights.scale, weights.spec.scales
        if weights.beside is not None and weights.spec.beside is not None:
            jobs = np.zeros(2, JOB)
            self._product(jobs[:1], weights.beside.gate)
            self._product(jobs[1:], weights.beside.out)
            layer["beside"] = self.keep(jobs)
            layer["beside_activation"] = ACTIVATIONS.index(weights.spec.beside.activation)
            self.norm(layer["beside_norm"], weights.beside.norm)
        if isinstance(mixer, Recurrent):
            assert weights.recurrent is not None
            layer["mixer"] = self._recurrent(mixer, weights.recurrent)
            alone = isinstance(mixer, ShortConvolution | Selective)
            own = mixer.channels if alone else int(jobs[0]["apart"]) - mixer.inner
            self.width = max(self.width, own)
        else:
            self._attention(mixer, weights, layer)
        if isinstance(mlp, Experts):
            assert weights.experts is not None
            layer["experts"] = self._mixture(mlp, weights.experts)
        dense = mlp.shared if isinstance(mlp, Experts) else mlp
        if dense is not None:
            layer["activation"], layer["gated"] = ACTIVATIONS.index(dense.activation), dense.gated
            layer["inner_size"] = dense.inner
            layer["positive"], layer["negative"] = weights.shape

    def _attention(self, spec: Attention, weights: LayerWeights, layer: Any) -> None:
        layer["whole"], layer["gates"] = spec.norms is not None and spec.norms.whole, spec.gated
        layer["soft_gates"] = spec.soft_gates
        layer["window"], layer["cap"], layer["scale"] = spec.window, spec.cap, spec.scale
        layer["queries"], layer["kv_heads"], layer["width"] = spec.heads, spec.kv_heads, spec.width
        layer["own"] = spec.kv_heads if spec.shares is None else 0
        layer["sinks"], layer["late"] = self._numbers(weights.sinks), spec.norms is not None and spec.norms.turned
        if (norms := weights.head_norms) is not None:
            layer["normed"], layer["heads"] = len(norms.weight), self._numbers(norms.weight)
            layer["head_biases"] = self._numbers(norms.bias)
        if weights.latent is not None and spec.latent is not None:
            layer["latent"] = self._latent(spec.latent, weights.latent)

    def _inputs(self, weights: DecoderWeights) -> int:
        """The address of the record of layers' inputs, or 0."""
        spec, found = weights.spec.inputs, weights.inputs
        if spec is None or found is None:
            return 0
        inputs, job = np.zeros(1, INPUTS), np.zeros(1, JOB)
        self._product(job, found.matrix)
        inputs["job"], inputs["norm"], inputs["width"] = self.keep(job), self._numbers(found.norm), spec.width
        inputs["half"], inputs["table"] = self.table(found.table, False)
        for name in ("table_scale", "matrix_scale", "scale"):
            inputs[name] = getattr(spec, name)
        return self.keep(inputs)

    def _recurrent(self, spec: Recurrent, weights: RecurrentWeights) -> int:
        """The address of the record of a recurrent layer."""
        mixer = np.zeros(1, MIXER)
        mixer["kind"], mixer["number"] = RECURRENT.index(spec.kind), len(self.mixers)
        mixer["at"] = numbers_of(self.mixers[-1]) if self.mixers else 0
        for name in ("heads", "groups", "keys", "values", "kernel", "channels", "normed", "tiled"):
            mixer[name] = getattr(spec, name)
        mixer["eps"], mixer["least"] = self._eps, spec.least if isinstance(spec, Scan) else 0.0
        if isinstance(spec, DeltaNet):
            mixer["eps"], mixer["rate_scale"] = spec.eps or self._eps, spec.rate_scale
        mixer["past"], mixer["taps"] = (spec.kernel - 1) * spec.channels, self._numbers(weights.convolution)
        for name in ("bias", "decay", "step", "skip", "norm"):
            mixer[name] = self._numbers(getattr(weights, name))
        if isinstance(spec, Selective) and (chosen := weights.selection) is not None:
            jobs = np.zeros(2, JOB)
            self._product(jobs[:1], chosen.choice)
            self._product(jobs[1:], chosen.steps)
            mixer["choice"] = self.keep(jobs)
            mixer["steps"], mixer["rank"] = mixer["choice"] + jobs.itemsize, spec.rank
            (mixer["chosen"], mixer["timed"]), mixer["eps"] = jobs["apart"], spec.eps or self._eps
            for name, norm in zip(("rank_norm", "key_norm", "query_norm"), chosen.norms, strict=False):
                mixer[name] = self._numbers(norm)
        self.mixers.append(mixer)
        return mixer.ctypes.data

    def _latent(self, spec: Latent, weights: LatentWeights) -> int:
        """The address of the record of a layer's latent attention."""
        latent = np.zeros(1, LATENT)
        latent["rank"], latent["eps"], latent["key_norm"] = spec.rank, spec.eps, self._numbers(weights.key_norm)
        if weights.query is not None:
            job = np.zeros(1, JOB)
            self._product(job, weights.query)
            latent["query"], latent["query_norm"] = self.keep(job), self._numbers(weights.query_norm)
            latent["query_rank"] = weights.query.weight.shape[1]
        return self.keep(latent)

    def _mixture(self, spec: Experts, weights: ExpertWeights) -> int:
        """The address of the record of a layer's experts."""
        jobs, router = np.zeros(2 * spec.count, JOB), np.zeros(1, JOB)
        self._product(router, weights.router, exact=True)
        before = self.read_bytes
        for index, matrix in enumerate(matrix for both in weights.each for matrix in both):
            self._product(jobs[index : index + 1], matrix)
        self.read_bytes = before + (self.read_bytes - before) * spec.used // spec.count
        self._experts.append((int(router[0]["apart"]), int(jobs[0]["apart"]), int(jobs[1]["apart"])))
        experts = np.zeros(1, EXPERTS)
        for name in ("count", "used", "inner", "inside", "shared_scale"):
            experts[name] = getattr(spec, name)
        for name in ("sigmoid", "raw", "groups", "used_groups", "best", "divided", "scale"):
            experts[name] = getattr(spec.routing, name)
        experts["router"], experts["jobs"] = self.keep(router), self.keep(jobs)
        experts["correction"], experts["scales"] = self._numbers(weights.correction), self._numbers(weights.scales)
        if weights.norms:
            norms = np.zeros(len(weights.norms), NORM)
            for place, affine in enumerate(weights.norms):
                self.norm(norms[place], affine)
            experts["norms"] = self.keep(norms)
        experts["activation"], experts["gated"] = ACTIVATIONS.index(spec.activation), spec.gated
        experts["shared_gated"] = spec.shared_gate is not None
        return self.keep(experts)

    def _sizes(self, weights: DecoderWeights) -> NDArray[np.int64]:
        """Numbers of a row in each of the kernels' ``Rooms``."""
        spec = weights.spec
        qkv, out, up, down = (int(apart) for apart in self.jobs["apart"][:-1].reshape(-1, 4).max(0))
        routers, ups, downs = (max(aparts) for aparts in zip((0, 0, 0), *self._experts, strict=True))
        latent = [layer.latent.query for layer in weights.layers if layer.latent is not None]
        ranks = (0, *(query.weight.shape[1] for query in latent if query is not None))
        inner = max(0, *spec.inner, *ranks)
        if latent:
            up, qkv = max(up, qkv), max(qkv, (spec.attention.heads + 1) * spec.attention.width)
        inputs = 0 if weights.inputs is None else len(weights.inputs.matrix.weight)
        up, inner = max(up, inputs), max(inner, 0 if spec.inputs is None else spec.inputs.width)
        narrow, gathered = max(out, down, downs), spec.hidden if self._experts else 0
        given = narrow if self._experts else 0
        heads = (one.heads * one.width for one in spec.attentions)
        seen = max(0, *heads, *(one.inner for one in spec.recurrent))
        sizes = [spec.hidden, seen, qkv, spec.hidden, narrow, max(up, ups), inner, routers, gathered, given, inputs]
        return np.array(sizes, np.int64)
