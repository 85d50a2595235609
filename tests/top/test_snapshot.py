"""``duoactor top`` without a terminal: rates, and one picture of now."""

import asyncio

import pytest
from rich.console import Console

from duoactor import AsyncClient, ConnectionLost
from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.top import RecentReports, TopPicture, clean, draw, snapshot
from protocols.messages import ActorStatus, RequestStatus, StatusReport, TargetStatus
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster


def client_of(cluster, name="watcher", **options) -> AsyncClient:
    return AsyncClient(ADDRESS, network=cluster.network.host(name), **options)


def drawn(picture: TopPicture, height: int) -> list[str]:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(draw(picture, height))
    return capture.get().splitlines()


def report(uptime_ms: float, tokens: int, made: int) -> StatusReport:
    return StatusReport(
        "r", "auto", uptime_ms, TargetStatus("toy", "cpu", "float32", 100, 10), ActorStatus("v"),
        (RequestStatus("a", "auto", "decode", tokens),), counters={"generation_tokens": made},
    )  # fmt: skip


def test_rates_are_of_the_last_seconds_and_begin_anew_with_another_verifier():
    watch = RecentReports("here")
    for second in range(10):
        watch.answered(report(1000.0 * second, 10 * second, 30 * second), float(second))
    picture = watch.picture()
    assert (picture.tokens_per_second, picture.rates) == (30.0, {"a": 10.0})
    watch.answered(report(5.0, 3, 3), 10.0)
    assert (watch.picture().tokens_per_second, watch.picture().rates) == (0.0, {})
    watch.failed("gone")
    assert watch.picture().report is None and watch.picture().problem == "gone"


def test_a_name_that_would_move_the_cursor_does_not():
    assert clean("a\x1b[2Jb") == "a?[2Jb"


def test_a_snapshot_shows_what_runs_and_every_request():
    async def go():
        async with Cluster(forward_s=0.2) as cluster, client_of(cluster, "asker") as asker:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            asked = [asyncio.create_task(asker.generate((5, i), max_tokens=300, ignore_eos=True)) for i in range(12)]
            await asyncio.sleep(0.2)
            async with client_of(cluster) as watcher:
                picture = await snapshot(watcher)
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            return picture

    picture = run(go())
    assert len(picture.report.requests) == 12
    text = drawn(picture, 60)
    assert sum("decode" in line or "prefill" in line or "queued" in line for line in text) == 12
    assert "8 more requests" in "\n".join(drawn(picture, 14))


def test_a_snapshot_without_a_verifier_is_an_error():
    async def go():
        cluster = Cluster()
        client = client_of(cluster)
        with pytest.raises(ConnectionLost, match="no verifier answers"):
            await snapshot(client)
        await client.aclose()

    run(go())


def test_the_command_ends_with_that_sentence(capsys, tmp_path):
    assert main(["top", "--connect", f"ipc://{tmp_path}/none.ipc"], Environment()) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("duoactor: no verifier answers at") and captured.out == ""
