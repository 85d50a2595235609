"""What every actor with a model on a CPU imports and compiles before it loads its own: most of its start.

A process that has done this and computed nothing may be forked.
"""

from __future__ import annotations

import gc


def preload() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, modeling_utils  # noqa: F401

    import actors.drafter.loop
    import actors.engines.build
    import actors.verifier.loop
    import actors.verifier.timing  # noqa: F401
    from actors.engines.backends.compiler import compiled_kernels

    compiled_kernels()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all that it looks at
