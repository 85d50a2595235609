"""The source of a decoder's weights: a checkpoint's tensors by the names of transformers' own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from actors.engines.weights.blocks import Blocks
from actors.engines.weights.tensor_files import TensorFiles
from actors.engines.weights.unneeded import refuse_unused
from protocols.errors import ModelError

CPU = torch.device("cpu")


class WeightSource(Protocol):
    """Weights by name, in the type in which they are to be computed with. A name is read once."""

    device: torch.device
    dtype: torch.dtype

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str) -> Tensor:
        """The whole tensor. The source may let go of it. Raises KeyError or ModelError."""
        ...

    def shape(self, name: str) -> Sequence[int] | None:
        """A weight's; None: there is none, or it is made of others and known when it is taken."""
        return None

    def place(self, name: str) -> str:
        """A weight's file and its name there, for messages."""
        return f"weight {name}"

    def blocks(self, name: str) -> list[Blocks] | None:
        """A matrix, or that of each expert, as its file stores it, where products read that; None: :meth:`take` it."""
        return None

    def check_used(self, layers: int) -> None:
        """Raise ModelError for a tensor that was not taken and is not known to be unneeded."""
        return None


class StoredWeight(Protocol):
    """A weight that is stored otherwise than as a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def values(self) -> Any:
        """Its numbers, an array or a tensor."""
        ...

    def blocks(self) -> list[Blocks] | None:
        """See :class:`WeightSource`."""
        ...


# How the text part's names begin in models with eyes, instead of ``model.``
PREFIXES = ("model.", "model.language_model.", "model.text_model.")
OLDER = {"lm_head.weight": "embed_out.weight"}  # GPT-NeoX's in earlier versions of transformers


def own_name(name: str, names: Container[str]) -> str:
    """The name in a model that has these."""
    if name not in names and OLDER.get(name, "") in names:
        return OLDER[name]
    rest = name.removeprefix("model.")
    own = (prefix + rest for prefix in PREFIXES if rest != name and prefix + rest in names)
    return next(own, name)


class StoredSource(WeightSource):
    """The weights of a checkpoint's files. What is packed stays so where the products read it."""

    def __init__(
        self,
        where: str,
        weights: Mapping[str, Tensor | StoredWeight],
        dtype: torch.dtype,
        device: torch.device = CPU,
        packed: bool = True,
        stored_as: Callable[[str], str] = str,
    ) -> None:
        """``where``: the model's name or file. ``dtype``: of all tensors, and of packed matrices that the products do
        not read. ``packed``: products read blocks; else all are widened. ``stored_as``: the name there of a weight that
        may be missing."""
        self.device, self.dtype, self._where, self._weights = device, dtype, where, weights
        self._packed, self._stored_as = packed, stored_as
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return own_name(name, self._weights) in self._weights

    def take(self, name: str) -> Tensor:
        own = own_name(name, self._weights)
        found = self._weights.get(own)
        if found is None:
            raise ModelError(f"{self._where} has no tensor {self._stored_as(name)}; download it again")
        self._used.add(own)
        if isinstance(found, Tensor):
            return found.to(self.device, self.dtype)
        values = torch.as_tensor(found.values())
        as_it_is = values.ndim == 1 and self.device.type == "cpu"  # compiled layers have norms in float32
        return values if as_it_is else values.to(self.device, self.dtype)

    def shape(self, name: str) -> Sequence[int] | None:
        own = own_name(name, self._weights)
        if isinstance(self._weights, TensorFiles):
            return self._weights.shape(own)
        found = self._weights.get(own)
        return None if found is None or getattr(found, "is_made", False) else found.shape

    def place(self, name: str) -> str:
        own = own_name(name, self._weights)
        found = None if isinstance(self._weights, TensorFiles) else self._weights.get(own)
        return f"tensor {getattr(found, 'name_in_file', own)} of {self._where}"

    def blocks(self, name: str) -> list[Blocks] | None:
        self._used.add(own := own_name(name, self._weights))  # who gets none takes it
        return self._blocks(self._weights.get(own))

    def _blocks(self, found: Tensor | StoredWeight | None) -> list[Blocks] | None:
        """What the products of the device read."""
        blocks = None if found is None or isinstance(found, Tensor) or not self._packed else found.blocks()
        return None if blocks is None or (self.device.type == "cpu" and not blocks[0].on_cpu) else blocks

    def check_used(self, layers: int) -> None:
        refuse_unused(self._where, self._weights.keys() - self._used, layers)

    @property
    def size(self) -> int:
        """Weights in all."""
        return sum(math.prod(weight.shape) for weight in self._weights.values())

    @property
    def nbytes(self) -> int:
        """Size of weights as they are computed with: compiled layers keep in 16 bits what is stored in them."""
        return sum(map(self._bytes_of, self._weights.values()))

    def _bytes_of(self, weight: Tensor | StoredWeight) -> int:
        size = self.dtype.itemsize
        if isinstance(weight, Tensor):
            size = min(size, max(2, weight.dtype.itemsize)) if self.device.type == "cpu" else size
        elif (blocks := self._blocks(weight)) is not None:
            return sum(each.nbytes if self.device.type == "cpu" else each.nbytes_on_gpu for each in blocks)
        return math.prod(weight.shape) * size


class ModuleSource(WeightSource):
    """The parameters of a ``transformers`` model, which is spent: each is freed when it has been taken."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self._parameters |= dict(model.named_buffers(remove_duplicate=False))
        first = next(model.parameters())
        self.device, self.dtype = first.device, first.dtype
        self._shared = _shared(self._parameters)

    def __contains__(self, name: str) -> bool:
        return own_name(name, self._parameters) in self._parameters

    def shape(self, name: str) -> Sequence[int] | None:
        found = self._parameters.get(own_name(name, self._parameters))
        return None if found is None else found.shape

    def take(self, name: str) -> Tensor:
        name = own_name(name, self._parameters)
        parameter = self._parameters.pop(name)
        tensor = parameter.detach()
        place = self._shared[id(parameter)]
        place.discard(name)
        if not place:  # it is the last user: the model's own is released
            parameter.data = parameter.new_empty(0)
        return tensor


def _shared(parameters: dict[str, Tensor]) -> dict[int, set[str]]:
    """The names of each parameter, as a head may share the embedding's."""
    names: dict[int, set[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), set()).add(name)
    return names


def source_of(model: nn.Module) -> WeightSource:
    """A model's own source, or its parameters."""
    own: WeightSource | None = getattr(model, "source", None)
    return ModuleSource(model) if own is None else own
