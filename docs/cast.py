"""Records a command in a terminal as an animated SVG:  python docs/cast.py docs/demo.svg 'python examples/swap.py'

It needs pyte, and what the command needs (for that one: duoactor up --drafters 2). The picture shows real output, not
real speed: pauses longer than a second are cut to one, and the whole is played in at most twelve seconds.
"""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from html import escape
from itertools import pairwise

import pyte

COLUMNS, ROWS = 88, 20
CELL, LINE = 8.4, 19.0  # sizes of a monospaced font at 14 px
FRAME_S = 0.06  # what changes within it is one frame
LONGEST_S, HOLD_S = 12.0, 3.0
COLOURS = {"default": "#e6edf3", "green": "#3fb950", "cyan": "#39c5cf", "magenta": "#d2a8ff", "red": "#ff7b72"}
Row = tuple[tuple[str, str], ...]  # runs of (text, colour)


def frames(command: str) -> Iterator[tuple[float, list[Row]]]:
    """(seconds since the start, the screen) at every change."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {command}\r\n".encode())
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
        os.execvp("sh", ["sh", "-c", command])
    began = time.monotonic()
    while True:
        yield time.monotonic() - began, [_row(screen, row) for row in range(ROWS)]
        select.select([terminal], [], [])
        time.sleep(FRAME_S)
        try:
            stream.feed(os.read(terminal, 1 << 16))
        except OSError:  # the command has ended
            os.waitpid(pid, 0)
            return


def _row(screen: pyte.Screen, number: int) -> Row:
    runs: list[tuple[str, str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        if runs and runs[-1][1] == cell.fg:
            runs[-1] = (runs[-1][0] + cell.data, cell.fg)
        else:
            runs.append((cell.data, cell.fg))
    while runs and not runs[-1][0].strip():
        runs.pop()
    return tuple(runs)


def draw(recorded: list[tuple[float, list[Row]]]) -> str:
    times, at = [0.0], 0.0
    for (before, _), (now, _) in pairwise(recorded):
        at += min(1.0, now - before)
        times.append(at)
    scale = min(1.0, LONGEST_S / max(at, 1e-9))
    total = at * scale + HOLD_S
    ends = [time * scale / total for time in times[1:]] + [1.0]
    starts = [time * scale / total for time in times]
    shown: list[str] = []
    for row in range(ROWS):
        first = 0
        for number in range(len(recorded)):
            last = number + 1 == len(recorded)
            if last or recorded[number + 1][1][row] != recorded[number][1][row]:
                shown.append(_line(row, recorded[number][1][row], starts[first], ends[number], total, last))
                first = number + 1
    used = 2 + max(row for _, screen in recorded for row in range(ROWS) if screen[row])
    width, height = COLUMNS * CELL + 32, used * LINE + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0d1117"/>\n' + "".join(shown) + "</svg>\n"
    )


def _line(row: int, runs: Row, start: float, end: float, total: float, last: bool) -> str:
    if not runs:
        return ""
    spans, column = "", 0
    for text, colour in runs:
        fill = COLOURS.get(colour, COLOURS["default"])
        spans += f'<tspan x="{16 + column * CELL:g}" fill="{fill}">{escape(text)}</tspan>'
        column += len(text)
    values, times = ("hidden;visible;hidden", f"0;{start:.4f};{end:.4f}")
    if start == 0.0:
        values, times = "visible;hidden", f"0;{end:.4f}"
    if last:
        values, times = ("hidden;visible", f"0;{start:.4f}") if start else ("visible", "0")
    return (
        f'<text y="{28 + row * LINE:g}" visibility="{"visible" if last else "hidden"}">{spans}'
        f'<animate attributeName="visibility" calcMode="discrete" dur="{total:.2f}s" repeatCount="indefinite" '
        f'values="{values}" keyTimes="{times}"/></text>\n'
    )


if __name__ == "__main__":
    picture, command = sys.argv[1:]
    with open(picture, "w") as file:
        file.write(draw(list(frames(command))))
