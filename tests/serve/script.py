"""A target that writes a given text, whatever it is asked, so that what follows from the text can be tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from actors.models import RENDERING
from protocols.messages import ChatTurn, Rendering, Sampling
from tests.world.cluster import Cluster
from tests.world.models import EOS, INFO, ToyCodec, ToyLanguage, ToyTarget

PROMPT = [2, 2, 2]
FIRST = 3  # token FIRST + i is the script's piece i


@dataclass(frozen=True)
class ScriptLanguage(ToyLanguage):
    length: int = 0

    def next(self, context: Sequence[int], sampling: Sampling) -> int:
        at = len(context) - len(PROMPT)
        return FIRST + at if at < self.length else EOS


@dataclass
class ScriptCodec(ToyCodec):
    script: Sequence[str] = ()
    asked: list[tuple[tuple[ChatTurn, ...], str]] = field(default_factory=list)  # turns and tools
    renderings: list[Rendering] = field(default_factory=list)

    def chat(
        self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING, context: int = 0
    ) -> list[int]:
        self.asked.append((tuple(turns), tools))
        self.renderings.append(rendering)
        return PROMPT

    def encode(self, text: str, special_tokens: bool = True, context: int = 0) -> list[int]:
        return [FIRST + self.script.index(text)] if text in self.script else PROMPT

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.decode([i], False) for i in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        found = "".join(self.script[i - FIRST] for i in ids if FIRST <= i < FIRST + len(self.script))
        return found if not skip_special_tokens else found.replace("[TOOL_CALLS]", "").replace("<|python_tag|>", "")


def scripted(text: str, piece: int = 5, **info) -> Cluster:
    """``piece``: characters of each token; ``info`` of the model, such as ``tool_form``."""
    script = [text[i : i + piece] for i in range(0, len(text), piece)]
    assert len(script) < INFO.vocab_size - FIRST
    target = ToyTarget(ScriptLanguage(length=len(script)), info=replace(INFO, **info))
    return Cluster(target=target, codec=ScriptCodec(script))
