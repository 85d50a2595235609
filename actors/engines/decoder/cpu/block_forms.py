"""Rows of weights in small groups (:mod:`actors.engines.decoder.cpu.forms`) as numbers."""

from __future__ import annotations

import llvmlite.ir as ir
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.forms import FORMS, GROUP, PANEL, SUPER
from actors.engines.decoder.cpu.linking import linked

_BITS = np.array([form.bits for form in FORMS])
_OFFSETS = np.array([form.offset for form in FORMS])
_MINIMA = np.array([form.minima for form in FORMS])
_SCALED = np.array([form.scaled for form in FORMS])
_HALVES = np.array([form.halves for form in FORMS])
_STEPS = np.array([form.steps for form in FORMS])
_SCALES = np.array([form.scales for form in FORMS])
_GROUPS = np.array([form.group for form in FORMS])
# What each code stands for, with the offset
_NUMBERS = np.array([[n + form.offset for n in form.table or range(-form.offset, 16 - form.offset)] for form in FORMS])
_LISTED = np.array([bool(form.table) for form in FORMS])


@linked
def panel_bytes(form, groups):
    """Bytes of a panel, see :meth:`Form.bytes_of`."""
    return groups * _GROUPS[form - 1] + groups // SUPER * _STEPS[form - 1]


@intrinsic
def _float16_at(typing, place):
    """The number at an address."""

    def generate(context, builder, signature, arguments):
        half = builder.inttoptr(arguments[0], ir.HalfType().as_pointer())
        return builder.fpext(builder.load(half, align=1), ir.FloatType())

    return types.float32(types.int64), generate


@linked
def _code(words, bits, lane, i):
    """The code of input ``i`` of a group."""
    quad, byte = i // 4, i % 4
    if bits == 8:
        return np.int32(words[4 * (PANEL * quad + lane) + byte])
    low = np.int32(words[4 * (PANEL * (quad % 4) + lane) + byte]) >> (4 if quad >= 4 else 0) & 15
    if bits == 5:
        return low | (np.int32(words[4 * (PANEL * 4 + lane) + byte]) >> quad & 1) << 4
    if bits == 6:
        return low | (np.int32(words[4 * (PANEL * (4 + quad // 4) + lane) + byte]) >> 2 * (quad % 4) & 3) << 4
    return low


@linked
def embed_blocks(tokens, job, size, out):
    """The rows ``tokens`` of a job's matrix, of ``size`` numbers each."""
    f, groups = job.form - 1, size // GROUP
    for row in range(len(tokens)):
        panel = min(tokens[row] // PANEL, job.panels - 1)
        lane = tokens[row] - min(panel * PANEL, job.own - PANEL)
        place = job.weights + panel * panel_bytes(job.form, groups)
        steps = place
        for g in range(groups):
            if _SCALED[f] and g % SUPER == 0:
                steps, place = place, place + _STEPS[f]
            small = array_at(place, _SCALES[f], np.uint8)
            words = array_at(place + _SCALES[f], _GROUPS[f] - _SCALES[f], np.uint8)
            minimum = np.float32(0)
            for half in range(2):
                if not _SCALED[f]:
                    scale = _float16_at(place + 2 * lane)
                    if _MINIMA[f]:
                        minimum = _float16_at(place + 2 * (PANEL + lane))
                else:
                    step = np.int32(small[(PANEL * half if _HALVES[f] else 0) + lane])
                    if not _MINIMA[f] and step > 127:
                        step -= 256
                    scale = _float16_at(steps + 2 * lane) * np.float32(step)
                    if _MINIMA[f]:
                        minimum = _float16_at(steps + 2 * (PANEL + lane)) * np.float32(small[PANEL + lane])
                for i in range(16 * half, 16 * half + 16):
                    code = _code(words, _BITS[f], lane, i)
                    number = np.float32((_NUMBERS[f, code] if _LISTED[f] else code) - _OFFSETS[f])
                    out[row * size + g * GROUP + i] = scale * number + minimum
            place += _GROUPS[f]
