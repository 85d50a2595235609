"""Weights in panels against the plain product."""

import gc
import os

import pytest
import torch

from actors.engines.decoder.cpu.panels import Panels, Rounded
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.matrix import Matrix
from tests.world.pairs import every_pair


def team_of(*helpers):
    from actors.engines.decoder.cpu import team  # compiles

    return team.Team(*helpers)


@pytest.fixture(params=[0, 2], ids=["alone", "two helpers"])
def team(request):
    return team_of(request.param)


SIZES = [(40, 48), (48, 2200), (72, 48), (192, 48), (72, 1100)]  # more inputs than a block, and fewer


@pytest.mark.parametrize(
    ("size", "halves", "bias", "helpers"),
    every_pair(SIZES, [torch.float16, torch.bfloat16, None], [True, False], [0, 2]),
)
def test_panels_give_the_plain_product_and_every_row_its_own_bits(size, halves, bias, helpers):
    (outputs, inputs), team, chance = size, team_of(helpers), torch.Generator().manual_seed(0)
    weight, shift = torch.randn(outputs, inputs, generator=chance), torch.randn(outputs, generator=chance)
    if halves is not None:
        weight = weight.to(halves).float()
    panels = Panels(Matrix(weight, shift if bias else None), team)
    assert panels.job["bits"] == (32 if halves is None else 16)
    assert panels.job["pairs"] == (halves == torch.bfloat16)
    x = torch.randn(19, inputs, generator=chance)
    whole = panels.multiply(x.numpy())
    torch.testing.assert_close(torch.from_numpy(whole), x @ weight.t() + (shift if bias else 0), atol=1e-4, rtol=1e-4)
    for rows in range(1, 19):
        assert (panels.multiply(x[:rows].numpy()) == whole[:rows]).all(), rows


def test_products_in_a_row_by_more_threads_than_cores_are_all_computed_whole():
    """Whoever is through takes from the others, and some are put aside in the middle."""
    chance, alone, several = torch.Generator().manual_seed(0), team_of(0), team_of(3)
    matrices = [Matrix(torch.randn(outputs, 64, generator=chance)) for outputs in (48, 96, 500, 1100)]
    pairs = [[Panels(one, team) for team in (alone, several)] for one in matrices]
    x = torch.randn(9, 64, generator=chance).numpy()
    for number in range(600):
        expected, found = (panels.multiply(x[: 1 + number % 9]) for panels in pairs[number % len(pairs)])
        assert (expected == found).all(), number


@pytest.mark.parametrize("outputs, inputs", [(40, 48), (72, 2200), (192, 48)])
def test_panels_of_bfloat16_multiply_inputs_rounded_to_it_and_every_row_has_its_own_bits(outputs, inputs, team):
    chance = torch.Generator().manual_seed(0)
    weight, x = torch.randn(outputs, inputs, generator=chance).bfloat16(), torch.randn(19, inputs, generator=chance)
    team.make_room(x.numel())
    panels = Panels(Matrix(weight), team)
    whole = panels.multiply(x.numpy())
    expected = x.bfloat16().float() @ weight.float().t()
    torch.testing.assert_close(torch.from_numpy(whole), expected, atol=1e-3, rtol=1e-4)
    assert (expected - x @ weight.float().t()).abs().max() > 0.01, "rounding is seen"
    for rows in range(1, 19):
        assert (panels.multiply(x[:rows].numpy()) == whole[:rows]).all(), rows


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_that_is_no_number_shows_in_its_output_alone(kind, team):
    weight = torch.randn(100, 48, generator=torch.Generator().manual_seed(0)).to(kind)
    weight[7, 5] = torch.nan
    team.make_room(48)
    found = Panels(Matrix(weight), team).multiply(torch.ones(1, 48).numpy())
    assert torch.from_numpy(found).isnan().nonzero().tolist() == [[0, 7]]


@pytest.mark.parametrize("outputs, inputs", [(40, 64), (72, 1120)])
def test_panels_of_8_bits_are_off_by_half_a_step_of_weights_and_inputs_at_most(outputs, inputs, team):
    chance = torch.Generator().manual_seed(2)
    weight, shift = torch.randn(outputs, inputs, generator=chance), torch.randn(outputs, generator=chance)
    weight[0] = 0.0
    weight[1] *= 1e-3
    team.make_room(19 * inputs)
    panels = Panels(Matrix(weight, shift), team, int8=True)
    x = torch.randn(19, inputs, generator=chance)
    whole = panels.multiply(x.numpy())
    off = (torch.from_numpy(whole) - x @ weight.t() - shift).abs()
    by_weights = x.abs().sum(1)[:, None] * weight.abs().amax(1) / 254
    by_inputs = x.abs().amax(1)[:, None] * weight.abs().sum(1) / 254
    assert (off <= (by_weights + by_inputs) * 1.01 + 1e-4).all()
    assert off.max() > 1e-3, "it is 8 bits that are read"
    expected = torch.from_numpy(Blocks([(Rounded(weight), None)]).values())
    assert ((expected - weight).abs() <= weight.abs().amax(1, keepdim=True) / 253 + 1e-6).all()
    for rows in range(1, 19):
        assert (panels.multiply(x[:rows].numpy()) == whole[:rows]).all(), rows


def test_helpers_end_with_their_team():
    team = team_of(2)
    threads = team.threads
    del team
    gc.collect()
    assert not any(thread.is_alive() for thread in threads)


def test_a_team_gives_the_bits_of_one_thread_however_the_pieces_fall():
    chance = torch.Generator().manual_seed(1)
    matrix = Matrix(torch.randn(64 * 9, 64, generator=chance).half().float())
    alone, together = Panels(matrix, team_of(0)), Panels(matrix, team_of(3))
    for rows in range(1, 10):
        x = torch.randn(rows, 64, generator=chance).numpy()
        expected = alone.multiply(x)
        for _ in range(50):
            assert (together.multiply(x) == expected).all()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned")
def test_a_helper_on_a_spare_cpu_changes_no_bit_and_pins_itself_alone():
    own = os.sched_getaffinity(0)
    cpu = min(own)
    team = team_of(0, [cpu])
    chance = torch.Generator().manual_seed(1)
    panels = Panels(Matrix(torch.randn(4800, 480, generator=chance)), team)
    x = torch.randn(8, 480, generator=chance).numpy()
    expected = panels.multiply(x)
    for used in (True, False):
        team.use_spare_cpus(used)
        for _ in range(20):
            assert (panels.multiply(x) == expected).all()
    assert team.threads[0].is_alive()
    while (pinned := os.sched_getaffinity(team.threads[0].native_id)) == own != {cpu}:
        os.sched_yield()  # until the thread has got so far
    assert (pinned, os.sched_getaffinity(0)) == ({cpu}, own)
