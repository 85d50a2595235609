import pytest

from duoactor.bench.methods import BY_NAME, ROWS, choose, label, rotated, sweep
from protocols.errors import ConfigError
from protocols.messages import Method


def test_every_method_of_the_protocol_is_a_row_and_so_are_three_of_transformers():
    assert {row.method for row in ROWS if row.ours} == {str(method) for method in Method}
    assert [row.name for row in ROWS if not row.ours] == [
        "transformers", "transformers-assisted", "transformers-prompt-lookup",
    ]  # fmt: skip
    assert all(bool(row.method) != bool(row.mode) for row in ROWS)


def test_a_list_of_methods_keeps_the_tables_order_and_brings_vanilla():
    assert [row.name for row in choose("tree, sps")] == ["vanilla", "sps", "tree"]
    assert choose("all") == list(ROWS)


def test_an_unknown_method_is_named_beside_the_known_ones():
    with pytest.raises(ConfigError, match="method 'spss' is not known; choose all or some of vanilla, sps, pld"):
        choose("sps,spss")


def test_duodecoding_has_one_two_three_and_dynamic_sequences():
    rows = [BY_NAME[name] for name in ("duodecoding-1", "duodecoding-2", "duodecoding-3", "duodecoding")]
    assert [row.sequences for row in rows] == [1, 2, 3, 0]


def test_the_sweep_goes_from_two_below_to_two_above_but_not_under_one():
    assert [row.gamma for row in sweep(7)] == [5, 6, 7, 8, 9]
    assert [row.gamma for row in sweep(2)] == [1, 2, 3, 4]
    assert label(sweep(7)[0].name) == "DuoDecoding, γ = 5"


def test_rotation_gives_every_row_every_place():
    assert [rotated("abc", by)[0] for by in range(4)] == ["a", "b", "c", "a"]
