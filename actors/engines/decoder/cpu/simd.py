"""Vectors of 16 floats for numba's kernels: sums in a fixed order, not the compiler's.

LLVM maps them to the registers that the processor has (one of AVX-512, two of AVX2, four of NEON); the bits are the
same on all of them.
"""

from __future__ import annotations

from functools import wraps

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.traps import CHECKED, end_outside

LINE = 64  # bytes of the cache's
VECTOR = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)


class Vector(types.Type):
    def __init__(self):
        super().__init__(name="f32x16")


_vector = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


def address(context, builder, kind, array, at, *, count=0):
    """A pointer to ``array[at]``. ``count``: elements that are read or written there."""
    whole = cgutils.create_struct_proxy(kind)(context, builder, array)
    if CHECKED:
        end_outside(builder, at, count, whole.nitems)
    return builder.gep(whole.data, [at])


class Parts:
    """A named tuple that an intrinsic is given, by the names of its fields."""

    def __init__(self, context, builder, kind, value):
        self._context, self._builder = context, builder
        self.kinds = dict(zip(kind.fields, kind.types, strict=True))
        self._values = dict(zip(kind.fields, cgutils.unpack_tuple(builder, value), strict=True))

    def __getitem__(self, name):
        """A number as ``intp``, or a truth."""
        kind, value = self.kinds[name], self._values[name]
        return value if kind == types.boolean else self._context.cast(self._builder, value, kind, types.intp)

    def place(self, name, at):
        """A pointer to an element of an array."""
        return address(self._context, self._builder, self.kinds[name], self._values[name], at)


def loaded(context, builder, kind, array, at):
    """``array[at : at + 16]``, see :func:`converted`."""
    return converted(builder, kind.dtype, address(context, builder, kind, array, at, count=LANES))


def converted(builder, kind, place):
    """16 numbers at a pointer: float32, or the bits of float16 in uint16, of bfloat16 in int16."""
    if kind == types.uint16:
        halves = builder.bitcast(place, ir.VectorType(ir.HalfType(), LANES).as_pointer())
        return builder.fpext(builder.load(halves, align=2), VECTOR)
    if kind == types.int16:
        bits = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(16), LANES).as_pointer()), align=2)
        return builder.bitcast(builder.shl(builder.zext(bits, WORDS), picked([16] * LANES)), VECTOR)
    return builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=4)


def splatted(builder, number, lanes=LANES):
    """``lanes`` times that number."""
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, picked([0] * lanes))


def called(builder, name, result, *arguments):
    """What an intrinsic of LLVM's gives."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def multiplied(builder, x, y, z):
    """``x * y + z``, rounded once."""
    return called(builder, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


def repeated(builder, step, end, sums, body):
    """``sums`` after ``body(index, sums)``, which grows them, for the indices from 0 to ``end``, at least once."""
    before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    known = [builder.phi(begin.type) for begin in (end, *sums)]
    grown = [builder.add(known[0], end.type(step)), *body(known[0], known[1:])]
    for phi, begin, again in zip(known, [end.type(0), *sums], grown, strict=True):
        phi.add_incoming(begin, before)
        phi.add_incoming(again, builder.block)
    builder.cbranch(builder.icmp_signed("<", grown[0], end), loop, after)
    builder.position_at_end(after)
    return grown[1:]


def for_each(builder, number, most, generate):
    """Code of its own for each value of ``number`` from 1 to ``most``."""
    end = builder.append_basic_block("end")
    cases = builder.switch(number, end)
    for count in range(1, most + 1):
        block = builder.append_basic_block(f"of{count}")
        cases.add_case(count, block)
        builder.position_at_end(block)
        generate(count)
        builder.branch(end)
    builder.position_at_end(end)


def picked(lanes):
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def written(result, *kinds):
    """A compiled function of these types, by one that writes its code: ``write(builder, *values)``, the result."""

    def made(write):
        def typed(typing, *given):
            return result(*kinds), lambda context, builder, signature, arguments: write(builder, *arguments)

        return intrinsic(wraps(write)(typed))

    return made


def asked(builder, place):
    """Ask for a line of the cache, ``LINE`` bytes, for reading, into the second level: into the first alone (NTA) half
    as much comes from memory in a second (docs/experiments/engine-weights.md, "What is asked for ahead")."""
    number, line = ir.IntType(32), builder.bitcast(place, ir.IntType(8).as_pointer())
    called(builder, "llvm.prefetch.p0i8", ir.VoidType(), line, number(0), number(2), number(1))


def _larger(builder, x, y):
    """The larger of each two lanes; NaN where ``x`` is."""
    return builder.select(builder.fcmp_ordered(">", y, x), y, x)


larger = written(_vector, _vector, _vector)(_larger)


@intrinsic
def load(typing, array, at):
    """``array[at : at + 16]`` of a contiguous array of one dimension."""

    def generate(context, builder, signature, arguments):
        return loaded(context, builder, signature.args[0], *arguments)

    return _vector(array, types.intp), generate


@intrinsic
def store(typing, array, at, vector):
    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments[:2], count=LANES)
        builder.store(arguments[2], builder.bitcast(place, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@written(_vector, types.float32)
def splat(builder, number):
    """16 times that number."""
    return splatted(builder, number)


fma = written(_vector, _vector, _vector, _vector)(multiplied)


@written(_vector, _vector, _vector)
def add(builder, x, y):
    return builder.fadd(x, y)


@written(_vector, _vector, _vector)
def smaller(builder, x, y):
    """The smaller of each two lanes; NaN where ``x`` is."""
    return builder.select(builder.fcmp_ordered("<", y, x), y, x)


@written(types.boolean, _vector, types.float32)
def reaches(builder, vector, least):
    """Whether any lane is at least that."""
    found = builder.fcmp_ordered(">=", vector, splatted(builder, least))
    bits = builder.bitcast(found, ir.IntType(LANES))
    return builder.icmp_unsigned("!=", bits, ir.IntType(LANES)(0))


@written(_vector, _vector, types.float32, _vector)
def only_from(builder, vector, least, other):
    """The lanes of ``other`` where ``vector`` is at least that, and 0 elsewhere."""
    found = builder.fcmp_ordered(">=", vector, splatted(builder, least))
    return builder.select(found, other, ir.Constant(VECTOR, [0.0] * LANES))


@written(types.float32, _vector)
def total(builder, vector):
    """The sum of the lanes, halves upon halves."""
    return _folded(builder, vector, builder.fadd)


@written(types.float32, _vector)
def highest(builder, vector):
    return _folded(builder, vector, lambda x, y: _larger(builder, x, y))


@written(_vector, _vector)
def exponential(builder, vector):
    """The exponential of every lane up to 87 (Cephes' expf); below -87 that of -87; NaN of NaN."""

    def every(number):
        return ir.Constant(VECTOR, [number] * LANES)

    unknown = builder.fcmp_unordered("uno", vector, vector)
    x = _larger(builder, every(-87.0), vector)  # a number even for NaN, which no integer can represent
    power = multiplied(builder, x, every(1.44269504088896341), every(0.5))
    power = called(builder, "llvm.floor.v16f32", VECTOR, power)
    x = multiplied(builder, power, every(-0.693359375), x)
    x = multiplied(builder, power, every(2.12194440e-4), x)
    y = every(1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = multiplied(builder, y, x, every(term))
    y = multiplied(builder, builder.fmul(y, x), x, builder.fadd(x, every(1.0)))
    biased = builder.add(builder.fptosi(power, WORDS), picked([127] * LANES))
    made = builder.fmul(y, builder.bitcast(builder.shl(biased, picked([23] * LANES)), VECTOR))
    return builder.select(unknown, vector, made)


@written(_vector, _vector, _vector)
def divided(builder, x, y):
    return builder.fdiv(x, y)


@written(_vector, _vector, _vector)
def turned(builder, pairs, turns):
    """Complex numbers, real and imaginary parts side by side, times others."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    lanes = range(LANES)
    real = builder.shuffle_vector(turns, nothing, picked([lane & ~1 for lane in lanes]))
    imaginary = builder.shuffle_vector(turns, nothing, picked([lane | 1 for lane in lanes]))
    swapped = builder.shuffle_vector(pairs, nothing, picked([lane ^ 1 for lane in lanes]))
    signs = ir.Constant(VECTOR, [-1.0, 1.0] * (LANES // 2))
    return multiplied(builder, pairs, real, builder.fmul(swapped, builder.fmul(imaginary, signs)))


def _folded(builder, x, join):
    half = LANES // 2
    while half:
        upper = picked([(lane + half) % LANES for lane in range(LANES)])
        x = join(x, builder.shuffle_vector(x, ir.Constant(VECTOR, ir.Undefined), upper))
        half //= 2
    return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))
