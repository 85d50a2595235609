"""Any message that can be decoded: hypothesis strategies from the types of its fields and their limits."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from protocols import messages


def values(kind: Any, size: int = 3) -> st.SearchStrategy[Any]:
    """Values of a message field's type, within its limits; arrays of at most ``size`` elements."""
    limits = msgspec.Meta()
    if typing.get_origin(kind) is typing.Annotated:
        kind, limits = typing.get_args(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: values(hints[name], size) for name in kind.__struct_fields__})
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values(one, size) for one in arguments])
    if origin is tuple:
        if arguments[1:] == (...,):
            return st.lists(values(_resolved(arguments[0]), size), max_size=size).map(tuple)
        return st.tuples(*[values(one, size) for one in arguments])
    if origin is dict:
        return st.dictionaries(values(arguments[0], size), values(arguments[1], size), max_size=size)
    if kind is float:
        exclude = limits.gt is not None
        return st.floats(limits.gt if exclude else limits.ge, limits.le, exclude_min=exclude, allow_nan=False)
    if kind is int:
        return st.integers(-(2**63) if limits.ge is None else limits.ge, 2**64 - 1 if limits.le is None else limits.le)
    if kind is bytes:
        return st.binary(max_size=8)
    if kind is str:
        return st.text(min_size=limits.min_length or 0, max_size=8)
    return (
        st.none() if kind is type(None) else st.sampled_from([False, True]) if kind is bool else st.sampled_from(kind)
    )


def _resolved(kind: Any) -> Any:
    """The parts of a message are named by strings in the types of arrays."""
    return vars(messages)[kind] if isinstance(kind, str) else kind
