import struct
import zlib

import pytest

from duoactor.bench import figures, report
from duoactor.bench.results import StreamsRun
from tests.bench.benchkit import results, rounds


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


LOADS = tuple(
    StreamsRun(method=m, streams=n, repeat=0, tokens_per_second=v, first_ms=(9.0,), pauses_ms=(), digests={})
    for n, v in ((1, 50.0), (8, 300.0))
    for m in ("vanilla", "sps")
)


@pytest.mark.parametrize(
    ("found", "files"), [({}, ["speedup.png", "timeline.png"]), ({"loads": LOADS}, ["streams.png"])]
)
def test_every_picture_is_there_and_has_something_on_it(tmp_path, found, files):
    pytest.importorskip("matplotlib")
    report.write_all(results(**found), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == files
    for file in files:
        width, height, rows = size_and_colours(tmp_path / file)
        assert width > 500 and height > 150 and rows > 20
    text = (tmp_path / "report.md").read_text()
    assert all(f"]({file})" in text for file in files)


def test_without_matplotlib_the_report_says_how_to_get_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "available", lambda: False)
    report.write_all(results(), tmp_path)
    said = "No pictures: they need matplotlib; install it with `pip install 'duoactor[bench]'`."
    assert said in (tmp_path / "report.md").read_text()
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
    assert figures.draw_all(results(runs=()), tmp_path) == []


def test_every_bar_is_where_it_was_measured():
    made = rounds(5, draft_us=300, wait_us=200.0)
    drawn = figures.bars(made)
    starts = {kind: [(b.start_us, b.end_us - b.start_us) for b in drawn if b.kind == kind] for kind in figures.COLOURS}
    assert starts["verify"] == [(one.started_us, one.forward_us) for one in made]
    assert starts["wait"] == [(one.waited_from_us, one.wait_us) for one in made]
    assert starts["draft"] == [forward for one in made for forward in one.draft_forwards]


def test_an_excerpt_cuts_bars_at_its_edges_and_counts_no_tokens_that_came_later():
    drawn = figures.excerpt(rounds(10, draft_us=400), 2500.0)
    assert {bar.kind for bar in drawn} == {"verify", "draft"}
    assert all(bar.start_us >= 0 and bar.end_us <= 2500.0 for bar in drawn)
    assert [bar.tokens for bar in drawn if bar.kind == "verify"] == [3, 3, 0]


def test_a_report_names_models_but_not_the_directories_they_lie_in():
    found = results(models={"target": "/home/somebody/models/big", "draft": "Qwen/Qwen3-0.6B"})
    assert "target big, draft Qwen/Qwen3-0.6B" in report.markdown(found, ())
    assert "somebody" not in report.markdown(found, ())
