"""Output of commands: tables, streams of tokens, JSON documents."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from duoactor import embedded
from duoactor.client.metrics import mean_acceptance_length, tokens_per_second
from protocols.messages import Chunk, FinishReason, RequestStats, Sampling

ACCEPTED = "\x1b[32m"  # green: drafted, and confirmed by the target
OWN = "\x1b[35m"  # magenta: made by the target itself
DIM = "\x1b[2m"
RESET = "\x1b[0m"
UNKNOWN_WIDTH = 80  # width of a terminal that does not say
CONTINUED = "    "  # begins the further lines of a sentence
UNBOUNDED = 10_000  # columns
QUOTED = re.compile(r"`[^`\n]+`")  # a command in a sentence
HELD = "\ue000"  # a space in a command, which is no place to fold a line


def plain(value: object) -> Any:
    """Structs and dataclasses as objects with named fields (on the wire structs are arrays), for a JSON document."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_done(document: Mapping[str, object], line: str, as_json: bool) -> None:
    """One line of result, or the document."""
    if as_json:
        print_json(document)
    else:
        print(line, flush=True)


def model_name(model_id: str) -> str:
    """A model as people named it: a path to the bundled pair becomes ``bundled target``."""
    path = Path(model_id)
    if path.parent == Path(__file__).parent / "pair":
        return f"bundled {path.name}"
    return "bundled target at the cost of 239M parameters" if path == embedded.large() else model_id


def knows_escapes(stream: TextIO) -> bool:
    """A terminal that obeys codes to move its cursor and to clear lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(choice: str, stream: TextIO) -> bool:
    """``choice`` is always, never or auto; auto is a terminal that has not been asked to stay plain."""
    if choice != "auto":
        return choice == "always"
    return knows_escapes(stream) and "NO_COLOR" not in os.environ


def columns(stream: TextIO) -> int:
    """Characters after which a line is wrapped: a terminal's width; in a pipe lines stay whole."""
    return width(stream) if stream.isatty() else UNBOUNDED


def folded(text: str, stream: TextIO, indent: str = CONTINUED) -> str:
    """``text`` in lines that a terminal can hold, further ones behind ``indent``. Paths, addresses and commands in
    backquotes stay whole, since they are copied, and so does every line in a pipe."""
    if not stream.isatty():
        return text
    wrapper = textwrap.TextWrapper(
        columns(stream), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    held = QUOTED.sub(lambda command: command[0].replace(" ", HELD), text)
    return "\n".join(wrapper.fill(line) for line in held.splitlines()).replace(HELD, " ")


def say(sentence: str) -> None:
    """A sentence of ours, on stderr."""
    Spinner.hide()
    print(folded(f"duoactor: {sentence}", sys.stderr), file=sys.stderr, flush=True)


def folded_command(words: Sequence[str], stream: TextIO, indent: str) -> str:
    """A command of words that are quoted, behind as many columns as ``indent`` has, in lines that a terminal can hold:
    each but the last ends with a backslash, so that the whole can be pasted into a shell."""
    lines = [""]
    for word in words:
        if lines[-1] and len(f"{indent}{lines[-1]} {word} \\") > columns(stream):
            lines.append("  " + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return f" \\\n{indent}".join(lines)


def width(terminal: TextIO) -> int:
    """Its columns."""
    try:
        return os.get_terminal_size(terminal.fileno()).columns or UNKNOWN_WIDTH
    except OSError:
        return UNKNOWN_WIDTH


class Spinner:
    """One line on a terminal that replaces itself, cut to its width; nothing at all in a pipe."""

    _last: ClassVar[Spinner | None] = None  # the one whose line is on the terminal

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if knows_escapes(stream) else None
        self._begin, self._end = (DIM, RESET) if wants_colour("auto", stream) else ("", "")
        self._shown = ""

    def __enter__(self) -> Spinner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        if self._stream is None or text == self._shown:
            return
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            cut = text[: width(self._stream) - 1]  # a line that is broken in two could not be replaced
            self._stream.write(f"\r\x1b[K{self._begin}{cut}{self._end}" if text else "\r\x1b[K")
            self._stream.flush()
        self._shown = text
        Spinner._last = self if text else None

    @classmethod
    def hide(cls) -> None:
        """Take the line away, whoever shows it, for a line that stays."""
        if cls._last is not None:
            cls._last.show("")


class TokenStream:
    """Writes text as it arrives; in colour, drafted tokens differ from the target's own."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._end = "\n"
        self._thinks = False

    def write(self, pieces: Sequence[str], accepted: Sequence[bool], text: str) -> None:
        if not text:
            return
        if self._thinks:
            self._stream.write("\n\n")
            self._thinks = False
        if self._colour and "".join(pieces) == text:
            shown = "".join(
                f"{ACCEPTED if drafted else OWN}{piece}"
                for piece, drafted in zip(pieces, accepted, strict=True)
                if piece
            )
            self._stream.write(shown + RESET)
        else:
            self._stream.write(text)
        self._stream.flush()
        self._end = text[-1]

    def think(self, text: str) -> None:
        """A piece of a thought, dimmed; a line of its own lies between it and what follows."""
        if text:
            self._stream.write(f"{DIM}{text}{RESET}")
            self._stream.flush()
            self._end, self._thinks = text[-1], True

    def close(self) -> None:
        """End the line if the text did not."""
        if self._end != "\n":
            self._stream.write("\n")
            self._stream.flush()


# --- request figures -------------------------------------------------------------------------------------------------


def summary(stats: RequestStats, cut: str = "") -> str:
    """``cut``: what ended the text before its end, in brackets; "": nothing did."""
    return (
        f"{stats.completion_tokens} tokens{cut}, {tokens_per_second(stats):.1f} tokens/s, "
        f"mean acceptance length {mean_acceptance_length(stats):.2f}, "
        f"first token after {stats.time_to_first_token_ms:.0f} ms ({stats.method})"
    )


def print_summary(last: Chunk | None, request: Mapping[str, Any]) -> None:
    """A dim line on stderr, on a terminal only, so that a script's streams have the model's words alone. ``last``: the
    last chunk of an answer to ``request``; None: it was interrupted."""
    if last is None or last.stats is None or not sys.stderr.isatty():
        return
    line = folded(summary(last.stats, _cut(last, request)), sys.stderr)
    print(f"{DIM}{line}{RESET}" if wants_colour("auto", sys.stderr) else line, file=sys.stderr, flush=True)


def _cut(last: Chunk, request: Mapping[str, Any]) -> str:
    if last.finish_reason != FinishReason.LENGTH or last.stats is None:
        return ""
    full = last.stats.completion_tokens >= request.get("max_tokens", Sampling().max_tokens)
    return " (cut there by --max-tokens)" if full else " (cut there by the end of the context)"


# --- tables ----------------------------------------------------------------------------------------------------------


def _console() -> Console:
    # in a pipe nothing is cut to a terminal's width
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)


def table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        name = column.removeprefix(">")
        made.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=True)
    return made


def print_table(made: Table, spare: Sequence[str] = (), width: int = UNBOUNDED) -> None:
    """``spare``: columns to leave out where a terminal, or ``width`` characters, are too narrow; the first first."""
    console = _console()
    console.width = min(console.width, width)
    with console.capture() as captured:
        console.print(fitted(made, spare, console))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def fitted(made: Table, spare: Sequence[str], console: Console) -> Table:
    """``spare``: columns that are left out, the first of them first, where a terminal is too narrow for all."""
    for name in spare:
        if Measurement.get(console, console.options.update(width=UNBOUNDED), made).maximum <= console.width:
            break
        made = _without(made, name)
    return made


def _without(made: Table, name: str) -> Table:
    kept = [column for column in made.columns if column.header != name]
    narrower = table(*(f"{'>' * (column.justify == 'right')}{column.header}" for column in kept))
    for row in zip(*(column.cells for column in kept), strict=True):
        narrower.add_row(*row)
    return narrower


def clean(text: str) -> str:
    """A name that comes from another process: what would move the cursor is shown as ``?``."""
    return "".join(char if char.isprintable() else "?" for char in text)


def duration(milliseconds: float) -> str:
    """ "4 s", "3 min 20 s", "5 h 3 min"."""
    seconds = int(milliseconds / 1000)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
