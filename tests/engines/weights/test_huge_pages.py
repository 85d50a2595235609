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


def held(pages: HugePages, array: np.ndarray) -> np.ndarray:
    copy = pages.room(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_what_is_held_stays_as_it_was_whatever_is_held_after_it(kernel):
    pages = HugePages()
    originals = [
        np.arange(number, dtype=kind).reshape(2, -1)
        for number in (2, 30, 4096)
        for kind in ("uint16", "float32", "int8")
    ]
    for one, copy in zip(originals, [held(pages, one) for one in originals], strict=True):
        assert copy.ctypes.data % LINE == 0
        np.testing.assert_array_equal(copy, one)


def test_more_than_a_chunk_is_held_in_one_piece_and_outlives_its_pages():
    large = np.arange(CHUNK // 4 + 10, dtype=np.int32)
    pages = HugePages()
    parts = (large[:10], large, large[-10:])
    copies = [held(pages, part) for part in parts]
    del pages
    gc.collect()
    for one, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(copy, one)
