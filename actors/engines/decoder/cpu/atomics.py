"""Loads, stores, sums and exchanges in an array of int64 that threads share; arrays and functions by their address."""

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import get_itemsize, populate_array

from actors.engines.decoder.cpu.simd import address


@intrinsic
def read(typing, state, at):
    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments, count=1)
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(state, types.intp), generate


@intrinsic
def write(typing, state, at, value):
    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments[:2], count=1)
        builder.store_atomic(arguments[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(state, types.intp, types.int64), generate


@intrinsic
def add(typing, state, at, more):
    """Adds, and returns what was there."""

    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments[:2], count=1)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(state, types.intp, types.int64), generate


@intrinsic
def compare_exchange(typing, state, at, known, new):
    """``new`` takes the place of ``known``; False where something else was there."""

    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments[:2], count=1)
        return builder.extract_value(builder.cmpxchg(place, *arguments[2:], "seq_cst"), 1)

    return types.boolean(state, types.intp, types.int64, types.int64), generate


@intrinsic
def array_at(typing, number, count, kind):
    """The array of ``count`` elements at an address."""
    array = types.Array(kind.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        number, count, _ = arguments
        made, size = context.make_array(array)(context, builder), get_itemsize(context, array)
        size = context.get_constant(types.intp, size)
        place = builder.inttoptr(number, made.data.type)
        populate_array(made, data=place, shape=[count], strides=[size], itemsize=size, meminfo=None)
        return made._getvalue()

    return array(types.int64, types.intp, kind), generate


@intrinsic
def call(typing, function, one, two, three):
    """A ``cfunc`` of three int64: code that several others call is compiled once that way, not again in each."""

    def generate(context, builder, signature, arguments):
        number = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [number] * 3).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate
