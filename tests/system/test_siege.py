"""What the hostile frames make of what they saw: they end in time, and find what they are there to find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world.siege import ENOUGH, Siege


@dataclass
class Attacked:
    """A process that is none."""

    log: Path
    sizes: list[float]
    alive: bool = True
    files: int = 9

    def held(self) -> tuple[float, int]:
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0], self.files


@pytest.fixture
def log(tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    return log


async def send(count, over):
    return count


async def test_all_frames_are_sent_and_how_far_it_is_is_told(log, capsys):
    siege = Siege("gateway", Attacked(log, [90.0]), 1_000_000, 1e9)
    await siege.run(send)
    siege.judge(texts=1)
    assert (siege.sent, siege.faults) == (1_000_000, [])
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 40 and told[9].startswith("gateway: 250,000 of 1,000,000 frames")


async def test_it_is_over_in_the_middle_of_a_slice_and_says_where_it_was_cut_off(log):
    async def slow(count, over):
        siege.limit_s = 0.0 if siege.sent else 1e9
        return count // 2 if over() else count

    siege = Siege("gateway", Attacked(log, [90.0]), 1_000_000, 1e9)
    await siege.run(slow)
    assert siege.sent == 37_500 and "37,500 of 1,000,000, where it was cut off, frames" in siege.line(3)


@pytest.mark.parametrize(
    ("changes", "texts", "words"),
    [
        ({"sizes": [90.0] * 5 + [111.0]}, 1, "grown from 90.0 to 111.0 MB"),
        ({"alive": False}, 1, "ended after"),
        ({}, 0, "no text came"),
    ],
)
async def test_what_a_process_must_not_do_is_found(log, changes, texts, words):
    siege = Siege("client", Attacked(**{"log": log, "sizes": [90.0], **changes}), ENOUGH, 1e9)
    await siege.run(send)
    siege.judge(texts)
    assert len(siege.faults) == 1 and words in siege.faults[0]


async def test_a_traceback_is_found(log):
    log.write_text("Traceback (most recent call last)")
    siege = Siege("client", Attacked(log, [90.0]), 100, 1e9)
    await siege.run(send)
    siege.judge(texts=0)
    assert "Traceback" in siege.faults[0]
