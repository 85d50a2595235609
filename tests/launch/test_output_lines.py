"""A child's bytes become lines, and its progress bars do not."""

from __future__ import annotations

from duoactor.launch.child import LONGEST_LINE, OutputLines


def fed(*pieces: bytes) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    progress: list[str] = []
    output = OutputLines(lines.append, progress.append)
    for piece in pieces:
        output.feed(piece)
    output.end()
    return lines, progress


def test_lines_are_whole_whatever_the_pieces():
    assert fed(b"on", b"e\ntw", b"o\r\nthree") == (["one", "two", "three"], [])


def test_a_character_cut_in_two_is_put_together():
    assert fed("é".encode()[:1], "é".encode()[1:] + b"\n") == (["é"], [])


def test_a_bar_that_replaces_itself_is_progress_and_not_a_line():
    lines, progress = fed(b"before\n", b"\r 0%", b"\r 50%", b"\r 100%\n", b"after\n")
    assert lines == ["before", "after"]
    assert progress == [" 0%", " 50%", " 100%"]


def test_a_line_without_end_is_cut():
    lines, _ = fed(b"x" * (LONGEST_LINE + 1), b"y\n")
    assert [len(line) for line in lines] == [LONGEST_LINE + 1, 1]


def test_a_bar_that_is_taken_away_leaves_no_empty_line():
    assert fed(b"before\n", b"\rworking", b"\r       \r") == (["before"], ["working", "       "])
