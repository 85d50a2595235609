"""Whether kernels that were compiled for this machine compute what torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def checked(make: Callable[[], T], error: Callable[[T], float], close: float) -> T | str:
    """What ``make`` gives, if its difference to torch is below ``close``; else what is wrong."""
    try:
        made = make()
        wrong = error(made)
    except Exception as failure:  # a compiler's: it may be any
        return str(failure).partition("\n")[0]
    return made if wrong < close else f"off by {wrong:.3g}"
