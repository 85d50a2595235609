import pytest

from duoactor.bench.methods import BY_NAME, ROWS, choose, rotated
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


def test_a_method_with_a_fixed_gamma_is_a_row_behind_the_adaptive_one():
    rows = choose("duodecoding@10,duodecoding@9,duodecoding")
    assert [(row.name, row.gamma) for row in rows[1:]] == [
        ("duodecoding", 0), ("duodecoding@9", 9), ("duodecoding@10", 10),
    ]  # fmt: skip
    assert rows[2].label == "DuoDecoding, γ = 9"
    for wrong in ("duodecoding@", "duodecoding@0", "duodecoding@999", "transformers@4"):
        with pytest.raises(ConfigError, match="write NAME@GAMMA, such as duodecoding@6, with 1 to 256"):
            choose(wrong)


def test_rotation_gives_every_row_every_place():
    assert [rotated("abc", by)[0] for by in range(4)] == ["a", "b", "c", "a"]
