"""Every GGUF architecture that is read, by its name in the file."""

from __future__ import annotations

from actors.engines.weights.gguf_dense import DENSE
from actors.engines.weights.gguf_mixtures import MIXTURES
from actors.engines.weights.gguf_recurrent import RECURRENT

ARCHITECTURES = DENSE | MIXTURES | RECURRENT
