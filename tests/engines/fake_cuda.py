"""A GPU that computes nothing: torch's fake tensors on ``device="cuda"``, with a CPU build of torch.

Operations run as shapes, types and devices only, so a tensor on the wrong device is an error as it is on a GPU. What a
GPU would wait for is counted: every copy to the host, by the operation that asked for it. Values that come back are
zeros, and yes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)


class FakeCuda(FakeTensorMode):
    """``reads``: copies to the host, each of which waits for all that was launched before it. ``writes``: copies to the
    device that the host waits for; those of pinned memory, which it does not wait for, are not among them."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.reads: list[str] = []
        self.writes: list[str] = []

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            self.reads.append("item")
            return True if args[0].dtype == torch.bool else 0.0 if args[0].dtype.is_floating_point else 0
        kwargs = kwargs or {}
        if func not in COPIES:
            return super().dispatch(func, types, args, kwargs)
        source = args[0] if func is aten._to_copy.default else args[1]
        out = super().dispatch(func, types, args, kwargs)
        async_copy = kwargs.get("non_blocking") or args[2:] == (True,)
        match source.device.type, out.device.type:
            case "cuda", "cpu":
                self.reads.append("copy")
            case "cpu", "cuda" if not async_copy:
                self.writes.append("copy")
        return out


class _WithoutDriver(TorchFunctionMode):
    """``tensor[...]`` and the like by the operations they stand for: torch's own ask for a driver before those."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _item(*args)
        if func is torch.Tensor.__setitem__:
            return aten.copy_.default(_item(*args[:2]), args[2])
        if func is torch.Tensor.to:
            return _to(*args, **(kwargs or {}))
        if func in (torch.Tensor.__int__, torch.Tensor.__float__):
            return (int if func is torch.Tensor.__int__ else float)(aten._local_scalar_dense.default(args[0]))
        if func is torch.Tensor.contiguous and not args[0].is_contiguous():
            return aten.clone.default(args[0], memory_format=torch.contiguous_format)
        if func is torch.conv1d and not args[0].is_contiguous():
            return func(aten.clone.default(args[0], memory_format=torch.contiguous_format), *args[1:], **(kwargs or {}))
        if func is torch.Tensor.copy_ and args[0].device.type == "cuda":
            return aten.copy_.default(*args, *(kwargs or {}).values())
        return func(*args, **(kwargs or {}))


def _to(tensor: torch.Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.Tensor):
            return _to(tensor, each.device, each.dtype)
    goal = {"dtype": tensor.dtype, "device": tensor.device}
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.dtype):
            goal["dtype"] = each
        elif isinstance(each, str | torch.device):
            goal["device"] = torch.device(each)
    if goal["dtype"] == tensor.dtype and goal["device"].type == tensor.device.type:
        return tensor
    return aten._to_copy.default(tensor, **goal, non_blocking=non_blocking)


def _item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [each for each in index if not isinstance(each, torch.Tensor)]:
        at = next(i for i, each in enumerate(index) if each is Ellipsis)
        real = sum(1 for each in index if each is not None) - 1
        index = (*index[:at], *[slice(None)] * (tensor.dim() - real), *index[at + 1 :])
    dim = 0
    gathered: list[torch.Tensor | None] = []
    for each in index:
        if isinstance(each, int):
            tensor = tensor.select(dim, each)
            continue
        if each is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(each, slice) and each != slice(None):
            tensor = aten.slice.Tensor(tensor, dim, each.start, each.stop, each.step or 1)
        where = None if each is None or isinstance(each, slice) else torch.as_tensor(each, device=tensor.device)
        gathered.append(where)
        dim += 1
    return aten.index.Tensor(tensor, gathered) if any(each is not None for each in gathered) else tensor


class _Event:
    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture
def fake_cuda(monkeypatch):
    """The mode, entered; what only a driver can do is stood in for."""
    mode = FakeCuda()

    def tolist(tensor: FakeTensor) -> Any:
        if tensor.device.type == "cuda":
            mode.reads.append("tolist")
        return np.zeros(tuple(tensor.shape), dtype=_numpy(tensor.dtype)).tolist()

    def numpy(tensor: FakeTensor, *, force: bool = False) -> np.ndarray:
        assert force or tensor.device.type == "cpu", "numpy cannot see a GPU's memory"
        if tensor.device.type == "cuda":
            mode.reads.append("numpy")
        return np.zeros(tuple(tensor.shape), dtype=_numpy(tensor.dtype))

    monkeypatch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", 0)  # single values would be computed, with a driver
    monkeypatch.setattr(FakeTensor, "tolist", tolist)
    monkeypatch.setattr(FakeTensor, "numpy", numpy, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 34, 1 << 34))
    with _WithoutDriver(), mode:
        yield mode


def on_cuda(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The model with empty weights on the device. Call it within the mode: fake weights cannot be moved later."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=kind, device="cuda:0")

    seen: dict[int, torch.nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = seen.setdefault(id(weight), torch.nn.Parameter(moved(weight), False))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved(buffer)
    return model


def _numpy(dtype: torch.dtype) -> Any:
    return {torch.bfloat16: np.float32, torch.float16: np.float32}.get(dtype) or np.dtype(
        str(dtype).removeprefix("torch.")
    )
