import struct
import zlib

import pytest
from benchkit import results, rounds

from duoactor.bench import figures, report, timeline


def size_and_colours(path):
    """Width, height and the number of different rows of a PNG: an empty picture has few."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    packed, at = b"", 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    pixels = zlib.decompress(packed)
    stride = len(pixels) // height
    return width, height, len({pixels[i : i + stride] for i in range(0, len(pixels), stride)})


def test_every_picture_is_there_and_has_something_on_it(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = report.write_all(results(), tmp_path)
    assert [figure.file for figure in drawn] == [  # in the report's order
        "speedup.png", "speedup_by_task.png", "figure3_ttft.png", "figure4_timeline.png", "figure5_sequences.png",
        "figure1_lengths.png",
    ]  # fmt: skip
    for figure in drawn:
        width, height, rows = size_and_colours(tmp_path / figure.file)
        assert width > 500 and height > 150 and rows > 20
    text = (tmp_path / "report.md").read_text()
    assert all(f"]({figure.file})" in text and figure.caption in text for figure in drawn)


def test_without_matplotlib_the_report_says_how_to_get_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "available", lambda: False)
    assert report.write_all(results(), tmp_path) == []
    assert (
        "No pictures: they need matplotlib, which `pip install 'duoactor[bench]'` brings."
        in (tmp_path / "report.md").read_text()
    )
    assert not list(tmp_path.glob("*.png")) and (tmp_path / "results.json").exists()


def test_the_report_says_who_loses_and_what_was_inflated():
    origin = {"source": "target", "source_parameters": 17_000_000, "parameters": 6_700_000_000}
    text = report.markdown(results(inflated={"target": origin}, complete=False), ())
    assert "Fastest on average: DuoDecoding, " in text
    assert "Slower than vanilla on average: transformers (0.52)." in text
    assert "the function of target (17M parameters) at the cost of 6700M" in text
    assert "**Incomplete**" in text
    assert "All 24 compared texts are identical to vanilla's." in text


def test_where_nothing_is_faster_than_vanilla_the_report_says_so():
    found = results()
    found.runs = tuple(one for one in found.runs if one.method in ("vanilla", "transformers"))
    said = report.verdict(found)
    assert said[0] == "Nothing is faster than vanilla on average; transformers comes nearest (0.52)."
    assert said[2] == "It is beaten on qa (vanilla 1.00, it 0.52); code (vanilla 1.00, it 0.52)."


def test_nothing_drawn_of_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    assert figures.draw_all(results(runs=(), lengths=None), tmp_path) == []


def test_every_bar_is_where_it_was_measured():
    made = rounds(5, draft_us=300, wait_us=200.0)
    drawn = timeline.bars(made)
    assert [(b.start_us, b.length_us) for b in drawn if b.kind == "verify"] == [
        (one.started_us, one.forward_us) for one in made
    ]
    assert [(b.start_us, b.length_us) for b in drawn if b.kind == "wait"] == [
        (one.waited_from_us, one.wait_us) for one in made
    ]
    assert [(b.start_us, b.length_us) for b in drawn if b.actor == "drafter"] == [
        forward for one in made for forward in one.draft_forwards
    ]


def test_an_excerpt_cuts_bars_at_its_edges_and_counts_no_tokens_that_came_later():
    drawn = timeline.excerpt(rounds(10, draft_us=400), 2500.0, skip=3)
    assert {bar.kind for bar in drawn} == {"verify", "draft"}
    assert all(bar.start_us >= 0 and bar.end_us <= 2500.0 for bar in drawn)
    assert [bar.tokens for bar in drawn if bar.kind == "verify"] == [3, 3, 0]


def test_a_report_names_models_but_not_the_directories_they_lie_in():
    found = results(models={"target": "/home/somebody/models/big", "draft": "Qwen/Qwen3-0.6B"})
    assert "target big, draft Qwen/Qwen3-0.6B" in report.markdown(found, ())
    assert "somebody" not in report.markdown(found, ())
