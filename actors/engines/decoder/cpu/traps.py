"""Bounds of arrays in compiled code, checked where ``NUMBA_BOUNDSCHECK=1`` is set: what is outside ends the process.

numba's own check raises IndexError, which cannot leave the functions that are called by address, and it knows
nothing of vectors. Give such a build a directory of its own by ``NUMBA_CACHE_DIR``: numba does not tell the two apart
on disk.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import cgutils, config

CHECKED = bool(config.BOUNDSCHECK)


def end_outside(builder, at, count, size):
    """End the process unless ``count`` elements from ``at`` on lie in an array of ``size``."""
    end = builder.add(at, ir.Constant(at.type, count))
    low, high = builder.icmp_signed("<", at, ir.Constant(at.type, 0)), builder.icmp_signed(">", end, size)
    with cgutils.if_unlikely(builder, builder.or_(low, high)):
        cgutils.printf(builder, f"%lld: {count} elements from there on are not in an array of %lld\n", at, size)
        flush = ir.FunctionType(ir.IntType(32), [ir.IntType(8).as_pointer()])
        nothing = ir.Constant(ir.IntType(8).as_pointer(), None)
        builder.call(cgutils.get_or_insert_function(builder.module, flush, "fflush"), [nothing])
        trap = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap")
        builder.call(trap, [])


def _check_index(context, builder, index, size, axis=None):
    end_outside(builder, index, 1, size)


if CHECKED:
    cgutils.do_boundscheck = _check_index
