"""The map of where drafts pay: the model of a round, what is measured for it, and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec
import pytest

from actors.settings import DrafterSettings, VerifierSettings
from duoactor.bench.places import FAR, HOST, INLINE, PLACES, advice, costs_of, speedup
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError
from tools.speedups.map import AGREEMENTS, RATIOS, Cell, PayMap, modelled
from tools.speedups.picture import SHOWN, svg
from tools.speedups.survey import places_wanted

FORWARD = ((1, 15_000.0), (8, 20_000.0), (32, 38_000.0))


def costs(ratio: float = 10.0, agreement: float = 0.75, streams: int = 1):
    return costs_of(FORWARD, FORWARD[0][1] / ratio, 300.0, agreement, streams)


@pytest.mark.parametrize("ratio", [3, 30])
@pytest.mark.parametrize("agreement", [0.3, 0.9])
@pytest.mark.parametrize("streams", [1, 8])
def test_the_nearer_the_drafter_the_faster_and_nothing_is_slower_than_plain(ratio, agreement, streams):
    speedups = [speedup(place, costs(ratio, agreement, streams)) for place in (HOST, *FAR)]
    assert speedups == sorted(speedups, reverse=True) and speedups[-1] >= 1.0


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_more_agreement_and_quicker_drafts_are_never_slower(place):
    by_agreement = [speedup(place, costs(agreement=share)) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    by_ratio = [speedup(place, costs(ratio)) for ratio in (1, 3, 10, 100)]
    assert by_agreement == sorted(by_agreement) and by_ratio == sorted(by_ratio)


def test_a_drafter_beside_the_target_pays_where_its_steps_are_slow_and_inline_ones_where_they_are_quick():
    assert speedup(HOST, costs(3)) > 1.1 * speedup(INLINE, costs(3))
    assert speedup(INLINE, costs(1000)) > speedup(HOST, costs(1000))


def test_inline_drafts_that_cost_nothing_and_are_always_right_make_a_window_of_tokens_a_forward():
    flat = costs_of(((1, 10_000.0), (64, 10_000.0)), 0.001, 0.0, 0.999999)
    assert speedup(INLINE, flat) == pytest.approx(32, rel=0.01)


def test_one_sentence_says_what_would_pay():
    assert advice(costs(3, 0.05)).endswith("no place of the draft pays by the model.")
    assert "a second host would pay up to" in advice(costs(3, 0.8))
    assert advice(costs(1000)).endswith("a second host would not pay.")


def found() -> PayMap:
    cells = [
        Cell(place=name, streams=streams, tokens_per_second=100.0, speedup=1.5, low=1.4, high=1.6)
        for name in (INLINE.name, "retrieval")
        for streams in (1, 8)
    ]
    made = PayMap(forward_us=FORWARD, step_us=1500.0, beside_us=300.0, agreement=0.75, models={"target": "a<b"})
    return msgspec.structs.replace(made, measured=modelled(cells, made.costs()))


def test_the_document_states_the_error_of_the_model_on_what_was_measured():
    made = msgspec.json.decode(msgspec.json.encode(found()), type=PayMap)
    assert [bool(cell.model) for cell in made.measured] == [True, True, False, False]
    off = [abs(cell.model / 1.5 - 1) for cell in made.measured[:2]]
    assert made.error() == (sum(off) / 2, max(off))


def test_the_picture_is_well_formed_and_has_every_measurement_and_the_models_cells_of_one_stream():
    text = svg(found())
    ET.fromstring(text)
    assert text.count(">1.50<") == 4 and "a&lt;b" in text
    assert text.count("fill-opacity") == 4 + len(SHOWN) * len(RATIOS) * len(AGREEMENTS)
    assert "prefers-color-scheme:dark" in text


def test_the_verifier_has_the_same_cpus_in_every_cell_and_the_drafter_is_reached_through_the_relay():
    wanted = Wanted(VerifierSettings(bind="ipc://v"), (DrafterSettings(draft="bundled"),))
    made = {next(iter(places)): one for places, one in places_wanted(wanted, (0, 1, 2, 3), 7777)}
    assert {(one.verifier.cpus, one.verifier.threads) for one in made.values()} == {("0,1", 2)}
    assert {name: one.verifier.inline_draft for name, one in made.items()} == {
        "inline": "bundled", "same host": "none", "retrieval": "none", "all in one": "bundled"
    }  # fmt: skip
    apart = {name: [drafter.connect for drafter in one.drafters] for name, one in made.items() if one.drafters}
    assert apart == {name: ["tcp://127.0.0.1:7777"] for name in ("same host", "all in one")}


def test_a_map_needs_a_draft_model():
    with pytest.raises(ConfigError, match="--draft"):
        list(places_wanted(Wanted(VerifierSettings(), (DrafterSettings(draft="sam"),)), (0, 1), 1))
