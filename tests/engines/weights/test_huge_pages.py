"""Weights in large pages: the arrays are the same, and where the kernel refuses such pages nothing else changes."""

import gc
import mmap

import numpy as np
import pytest

from actors.engines.weights import huge_pages
from actors.engines.weights.huge_pages import CHUNK, LINE, HugePages


@pytest.fixture(params=["granted", "refused", "unknown"])
def kernel(request, monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError("EINVAL")

    if request.param == "refused":
        monkeypatch.setattr(huge_pages.mmap, "mmap", Refusing)
    if request.param == "unknown":
        monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)


def test_what_is_held_stays_as_it_was_whatever_is_held_after_it(kernel):
    pages = HugePages()
    originals = [
        np.arange(number, dtype=kind).reshape(2, -1)
        for number in (2, 30, 4096)
        for kind in ("uint16", "float32", "int8")
    ]
    held = [pages.hold(one) for one in originals]
    for one, copy in zip(originals, held, strict=True):
        assert copy.dtype == one.dtype and not np.shares_memory(one, copy)
        assert copy.ctypes.data % LINE == 0 and copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, one)


def test_more_than_a_chunk_is_held_in_one_piece_and_outlives_its_pages():
    large = np.arange(CHUNK // 4 + 10, dtype=np.int32)
    pages = HugePages()
    parts = (large[:10], large, large[-10:])
    held = [pages.hold(part) for part in parts]
    del pages
    gc.collect()
    for one, copy in zip(parts, held, strict=True):
        np.testing.assert_array_equal(copy, one)
