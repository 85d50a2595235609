import pytest

from actors.verifier.text import Detokenizer, StopStrings


def bytes_decode(ids):
    return bytes(ids).decode("utf-8", errors="replace")


def test_pieces_join_to_the_whole_text_and_never_split_a_character():
    text = "naïve 😀 Grüße, 世界!"
    detokenizer = Detokenizer(bytes_decode)
    pieces = [detokenizer.push(b) for b in text.encode()]
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


def test_an_unfinished_character_comes_out_at_the_end():
    detokenizer = Detokenizer(bytes_decode)
    assert detokenizer.push("é".encode()[0]) == ""
    assert detokenizer.flush() == "�"


@pytest.mark.parametrize("before", [[], [b"a"], [b"a"] * 9])
def test_text_of_a_prompt_that_ends_inside_a_token_with_half_a_character_is_not_repeated(before):
    tokens = [*before, b"b\xc3", b"\xa9", b"d"]
    detokenizer = Detokenizer(
        lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"), range(len(before) + 1)
    )
    assert [detokenizer.push(len(before) + at) for at in (1, 2)] == ["é", "d"]


def test_a_long_output_keeps_a_short_buffer():
    detokenizer = Detokenizer(bytes_decode)
    text = "abc" * 1000
    assert "".join(detokenizer.push(b) for b in text.encode()) == text
    assert len(detokenizer.ids) < 600


def run(stops, pieces):
    matcher = StopStrings(stops)
    out = ""
    for piece in pieces:
        out += matcher.push(piece)
        if matcher.found is not None:
            return out, True
    return out + matcher.flush(), False


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "one ENtwo END three", ("one ENtwo ", True)),
        (["END"], "no stop EN", ("no stop EN", False)),
        (["bc", "abcd"], "xabcd", ("xa", True)),
        (["aab"], "aaab", ("a", True)),
        (["\n\n"], "a\nb\n\nc", ("a\nb", True)),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 99])
def test_text_stops_before_the_first_stop_string_however_it_is_cut(stops, text, expected, size):
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert run(stops, pieces) == expected


def test_nothing_that_may_begin_a_stop_string_is_released_early():
    matcher = StopStrings(["END"])
    assert matcher.push("x E") == "x "
    assert matcher.push("N") == ""
    assert matcher.push("x") == "ENx"


def test_a_long_stop_string_costs_a_token_no_more_than_its_text_is_long():
    class Stop(str):
        compared = 0

        def __getitem__(self, part):
            Stop.compared += 1
            return super().__getitem__(part)

    assert StopStrings([Stop("a" * 1024)]).push("bc") == "bc"
    assert Stop.compared <= len("bc")
