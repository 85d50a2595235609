"""The two ways in which functions are compiled, and all that is asked of numba's private parts.

numba optimises each function alone, then again in each of its callers, up to four times for the innermost loops. Each
time it makes machine code. ``linked`` functions go into their callers as they are written; what is ``kept`` on disk is
optimised once, with all that it calls. A numba with other private parts compiles linked functions as any: that takes
longer, and gives the same bits.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache

log = logging.getLogger("duoactor.engines")
_FLOATS = {"error_model": "numpy"}
# Files here that nothing compiled is made of
NOT_COMPILED = {
    *("compiler.py", "engine.py", "laid_out.py", "panels.py", "rings.py", "streams.py", "trunk.py"),
}


def _private_options() -> dict[str, Any]:
    """What makes numba leave a function as it is written; nothing where it has no such parts."""
    try:
        from numba import _dynfunc
        from numba.core.codegen import JITCodeLibrary
        from numba.core.compiler import Compiler
    except ImportError:
        return {}

    class Code(JITCodeLibrary):
        """The code of a function and of its callees."""

        def _optimize_functions(self, ll_module: Any) -> None:
            ll_module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None: ...

        def _finalize_final_module(self) -> None:
            self._finalized = True

    def for_callers(library: Any, described: Any, environment: Any) -> Any:
        """What numba knows a function by: Python cannot call it."""
        return _dynfunc.make_function(described.lookup_module(), described.qualname, "", 0, environment, (library,))

    class LinkedCompiler(Compiler):
        def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
            own = target.subtarget(get_executable=for_callers)
            super().__init__(typing, own, library or Code(target.codegen(), "linked"), *rest)

    return {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": LinkedCompiler}


_linked = _FLOATS | _private_options()
_files = sorted(path for path in Path(__file__).parent.glob("*.py") if path.name not in NOT_COMPILED)
_files.append(Path(__file__).parents[2] / "weights" / "formats.py")
# numba caches machine code until the function's own file changes, and ignores changes of callees in other files
SOURCES = hashlib.sha256(b"\0".join([*(p.read_bytes() for p in _files), *map(str.encode, _linked)])).hexdigest()[:16]


def linked(function: Any) -> Any:
    """A function for callers that are compiled. It is compiled once for all numbers of a type: numba would compile it
    for each number that stands in a call."""
    made = njit(**_linked)(function)
    template = made.get_call_template
    made.get_call_template = lambda args, named: template([*map(types.unliteral, args)], named)
    return made


@cache
def _cannot_keep(why: str) -> None:
    """Say it once."""
    log.warning("compiled layers cannot be kept on disk (%s): make room there, or every start compiles them anew", why)


def kept(*signature: Any, by: Callable[..., Any] = njit, **options: Any) -> Callable[[Any], Any]:
    """Compile a function when it is defined, unless machine code of the present sources is on disk."""
    compile_ = by(*signature, cache=True, **_FLOATS, **options)

    def compiled(function: Any) -> Any:
        function.__qualname__ += f"_{SOURCES}"  # in the names of its files
        try:
            return compile_(function)
        except OSError as error:
            _cannot_keep(str(error))
            return by(*signature, **_FLOATS, **options)(function)
        except Exception:  # numba raises whatever reading a damaged file raises
            FunctionCache(function).flush()
            return compile_(function)

    return compiled
