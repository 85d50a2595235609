"""Vectors of 16 floats for numba's kernels: sums whose order is written down, not chosen by a compiler.

LLVM maps them to the registers that the processor has (one of AVX-512, two of AVX2, four of NEON); the bits are the
same on all of them. numba's cache on disk does not see changes of this file: touch ``kernels.py`` too.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


class _Vector(types.Type):
    def __init__(self):
        super().__init__(name="f32x16")


_vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


def _address(context, builder, kind, array, at, vector=_VECTOR):
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


@intrinsic
def load(typing, array, at):
    """``array[at : at + 16]`` of a contiguous array of one dimension: float32, or the bits of float16 in uint16."""

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        if kind.dtype == types.uint16:
            array, at = arguments
            address = _address(context, builder, kind, array, at, ir.VectorType(ir.HalfType(), LANES))
            return builder.fpext(builder.load(address, align=2), _VECTOR)
        return builder.load(_address(context, builder, kind, *arguments), align=4)

    return _vector(array, types.intp), generate


@intrinsic
def store(typing, array, at, vector):
    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], address, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic
def splat(typing, number):
    """16 times that number."""

    def generate(context, builder, signature, arguments):
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), _places([0] * LANES))

    return _vector(types.float32), generate


@intrinsic
def fma(typing, x, y, z):
    """``x * y + z``, rounded once."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), arguments)

    return _vector(_vector, _vector, _vector), generate


@intrinsic
def add(typing, x, y):
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return _vector(_vector, _vector), generate


@intrinsic
def total(typing, vector):
    """The sum of the lanes, halves upon halves."""

    def generate(context, builder, signature, arguments):
        (x,) = arguments
        half = LANES // 2
        while half:
            upper = [(lane + half) % LANES for lane in range(LANES)]
            x = builder.fadd(x, builder.shuffle_vector(x, ir.Constant(_VECTOR, ir.Undefined), _places(upper)))
            half //= 2
        return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))

    return types.float32(_vector), generate


def _places(lanes):
    return ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes)
