"""Filling a gap: the text between two others, by the marks that a tokenizer has for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duoactor.serve.errors import bad

PROJECT, FILE = "<|repo_name|>", "<|file_sep|>"  # marks before a project's files, in Qwen's models of code


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands around an answer beside the prompt in front of it."""

    suffix: str
    begun: str = ""  # the answer's own beginning
    files: tuple[tuple[str, str], ...] = ()  # names and texts of others
    param: str = "suffix"


@dataclass(frozen=True, slots=True)
class FillMarks:
    """Special tokens by their names."""

    before: str
    behind: str
    middle: str
    project: bool = False  # PROJECT and FILE are special tokens, too

    def prompt(self, prefix: str, gap: Gap) -> str:
        files = "".join(f"{FILE}{name}\n{text}\n" for name, text in gap.files)
        if not gap.files:
            head = ""
        elif self.project:
            head = f"{PROJECT}myproject\n{files}{FILE}filename\n"
        else:
            head = "".join(f"{text}\n" for _, text in gap.files)
        return f"{head}{self.before}{prefix}{self.behind}{gap.suffix}{self.middle}{gap.begun}"


# Qwen and CodeGemma; StarCoder; Granite; GLM; DeepSeek; Code Llama
KNOWN: Sequence[FillMarks] = (
    FillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    FillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    FillMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    FillMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    FillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    FillMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def filled(prompt: object, gap: Gap, marks: FillMarks | None) -> str:
    """The prompt to continue so that the text fills the gap. ApiError (400) where there is none."""
    if marks is None:
        raise bad(gap.param, "cannot be had: the model's tokenizer has no marks for filling a gap in a text")
    if not isinstance(prompt, str):
        raise bad(gap.param, "needs a prompt that is one text")
    return marks.prompt(prompt, gap)
