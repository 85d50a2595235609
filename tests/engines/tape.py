"""What a CUDA graph is, on a CPU: operations are recorded as they reach the kernels, with every Python value and every
piece of memory they had, and done again without running any Python of the program."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST = ("aten._local_scalar_dense", "aten.lift_fresh", "aten.nonzero", "aten.item", "aten.is_nonzero", "aten.equal")


def memories(values) -> set[int]:
    tensors = [v for v in tree_leaves(values) if isinstance(v, torch.Tensor) and v.layout is torch.strided]
    return {v.untyped_storage()._cdata for v in tensors}  # packed weights have no memory to speak of, and never change


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(func).startswith(HOST):
            raise RuntimeError(f"{func} goes through the host, which no graph can do")
        if func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1]):
            raise RuntimeError("the shape depends on values, which no graph can follow")
        out = func(*args, **kwargs)
        given = memories((args, kwargs))
        fresh = [isinstance(o, torch.Tensor) and not memories(o) <= given for o in tree_leaves(out)]
        self.steps.append((func, args, kwargs, tree_leaves(out), fresh))
        return out

    def replay(self) -> None:
        for func, args, kwargs, outs, fresh in self.steps:
            again = tree_leaves(func(*args, **kwargs))
            for old, new, is_fresh in zip(outs, again, fresh, strict=True):
                if is_fresh:  # a graph's kernel writes where it wrote the first time
                    old.copy_(new)

    def spoil(self) -> None:
        """Memory of graphs that share a pool holds anything by the time of the next replay."""
        for *_, outs, fresh in self.steps:
            for out, is_fresh in zip(outs, fresh, strict=True):
                if is_fresh:
                    out.fill_(77 if out.dtype in (torch.int64, torch.int32, torch.uint8, torch.bool) else torch.nan)


class TapeRecorder:
    """Records like :class:`actors.engines.decoder.gpu.graphs.CudaRecorder`, out of one pool as it were."""

    def __init__(self) -> None:
        self.tapes = []
        self.replays = 0

    def capture(self, program):
        program()
        tape = Tape()
        with tape:
            program()
        self.tapes.append(tape)

        def replay() -> None:
            self.replays += 1
            for each in self.tapes:
                each.spoil()
            tape.replay()

        return replay
