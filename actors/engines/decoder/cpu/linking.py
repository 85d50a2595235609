"""Functions that are optimised where they are called.

numba optimises each function by itself, then again in each of its callers, up to four times for the innermost loops,
and makes machine code of it every time. These go into their callers as they are written; what is kept on disk is
optimised once, with all that it calls.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc, njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _Code(JITCodeLibrary):
    """The code of a function and of what it calls."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalized = True


def _for_callers(library: Any, described: Any, environment: Any) -> Any:
    """What numba knows a function by: Python cannot call it."""
    return _dynfunc.make_function(described.lookup_module(), described.qualname, "", 0, environment, (library,))


class _Compiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        own = target.subtarget(get_executable=_for_callers)
        super().__init__(typing, own, library or _Code(target.codegen(), "linked"), *rest)


_compiled = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_Compiler)


def linked(function: Any) -> Any:
    """A function for callers that are compiled. It is compiled once for all numbers of a type: numba would compile it
    for each number that stands in a call."""
    made = _compiled(function)
    template = made.get_call_template
    made.get_call_template = lambda args, named: template([*map(types.unliteral, args)], named)
    return made
