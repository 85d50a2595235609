"""Core assignment, without processes."""

from __future__ import annotations

import pytest

from actors.process import named_cpus, pin
from duoactor.launch.cores import assign_cores
from protocols.errors import ConfigError


@pytest.mark.parametrize(
    ("cpus", "threads", "verifier", "drafters"),
    [
        ([0], [1], (), ((),)),  # one core: the scheduler shares it
        ([0, 1], [1], (0,), ((1,),)),
        ([4, 9], [1], (4,), ((9,),)),  # the numbers that the affinity mask allows, whatever they are
        ([0, 1, 2, 3], [1], (0, 1, 2), ((3,),)),
        ([0, 1, 2, 3], [2], (0, 1), ((2, 3),)),
        ([0, 1, 2, 3], [1, 2], (0,), ((3,), (1, 2))),
        ([0, 1], [1, 1], (0,), ((1,), (1,))),  # too few: the drafters share
        ([0, 1, 2, 3], [8], (0, 1), ((2, 3),)),
        ([0, 1, 2], [], (), ()),
    ],
)
def test_verifier_and_drafters_share_no_core(cpus, threads, verifier, drafters):
    cores = assign_cores(cpus, threads)
    assert (cores.verifier, cores.drafters) == (verifier, drafters)
    assert not set(cores.verifier) & {cpu for own in cores.drafters for cpu in own}


def test_a_drafter_on_an_accelerator_takes_no_core():
    assert assign_cores([0, 1], [1], drafters_need_cores=False).verifier == ()


def test_cpus_are_named_by_their_numbers_and_nothing_else():
    assert named_cpus("") == [] and named_cpus("0,3") == [0, 3]
    with pytest.raises(ConfigError, match="'0-3' names no CPUs; write their numbers"):
        pin("0-3")


def test_cpus_that_a_process_may_not_use_are_no_reason_to_end(caplog):
    pin("1000000")
    assert "may not use; running unpinned" in caplog.text
