import os
import stat

import pytest

from actors import request_log
from actors.records import LoggedRequest, read_log
from actors.request_log import RequestLog
from protocols.messages import Cancel, FinishReason, Generate, Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO


def some(number):
    return LoggedRequest(prompt=(1, 2, 3), text=(number + 1,))


def written(file, requests, **options):
    log = RequestLog(str(file), **options)
    for request in requests:
        log.add(request)
    log.close()
    return log


def served(file, *questions):
    """A verifier with that log answers questions (prompt, sampling, further fields); its counters."""

    async def main():
        log = RequestLog(str(file))
        async with Cluster(request_log=log) as cluster:
            caller = await cluster.caller()
            for prompt, sampling, fields in questions:
                await caller.generate(prompt, sampling, **fields)
            log.close()
            await caller.generate((9,), Sampling(max_tokens=1))
            return dict(cluster.verifier.state.counters)

    return run(main())


def test_a_finished_request_is_logged_with_what_replay_needs(tmp_path):
    sampling = Sampling(temperature=0.7, seed=5, max_tokens=6, ignore_eos=True)
    served(tmp_path / "log", ((4, 5, 6), sampling, {}))
    [found] = read_log(tmp_path / "log")
    assert (found.prompt, found.sampling, found.finish_reason) == ((4, 5, 6), sampling, FinishReason.LENGTH)
    assert len(found.text) == 6
    assert (found.model_id, found.tokenizer, found.task) == ("toy", INFO.tokenizer_digest, "")


def test_who_asks_with_a_cache_salt_is_not_logged(tmp_path):
    few = Sampling(max_tokens=2, ignore_eos=True)
    counters = served(tmp_path / "log", ((4,), few, {"cache_salt": "mine"}), ((5,), few, {}))
    assert [one.prompt for one in read_log(tmp_path / "log")] == [(5,)]
    assert counters["requests_of_owners_not_logged"] == 1


def test_a_resumed_stream_is_logged_as_a_whole(tmp_path):
    few = Sampling(max_tokens=5, ignore_eos=True)
    served(tmp_path / "log", ((4,), few, {}))
    served(tmp_path / "again", ((4,), few, {"generated": next(read_log(tmp_path / "log")).text[:3]}))
    assert [one.text for one in read_log(tmp_path / "log")] == [one.text for one in read_log(tmp_path / "again")]


def test_only_its_owner_may_read_the_log(tmp_path):
    written(tmp_path / "log", [some(1)])
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_full_log_is_turned_once_and_never_grows_beyond_two_files(tmp_path):
    written(tmp_path / "log", [some(n) for n in range(60)], max_bytes=400)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1"]
    kept = [*read_log(tmp_path / "log.1"), *read_log(tmp_path / "log")]
    assert kept == [some(n) for n in range(60)][-len(kept) :]
    assert all(file.stat().st_size <= 400 for file in tmp_path.iterdir())


def test_a_restarted_verifier_goes_on_with_its_log(tmp_path):
    written(tmp_path / "log", [some(1)])
    written(tmp_path / "log", [some(2)])
    assert list(read_log(tmp_path / "log")) == [some(1), some(2)]


def test_a_line_that_a_killed_verifier_left_unfinished_spoils_no_other(tmp_path):
    written(tmp_path / "log", [some(1), some(2)])
    os.truncate(tmp_path / "log", (tmp_path / "log").stat().st_size - 4)
    written(tmp_path / "log", [some(3)])
    assert list(read_log(tmp_path / "log.1")) == [some(1)]
    assert list(read_log(tmp_path / "log")) == [some(3)]


def test_a_file_that_cannot_be_written_is_warned_of_once_and_disturbs_nobody(tmp_path, caplog):
    counters = served(tmp_path / "nowhere" / "log", *[((4,), Sampling(max_tokens=1), {})] * 3)
    assert counters["requests_not_logged"] >= 3
    assert len([one for one in caplog.records if "not logged" in one.message]) == 1


def test_a_disk_that_was_full_for_a_while_leaves_whole_lines_only(tmp_path, monkeypatch):
    plain = os.write
    turns = iter(range(100))
    monkeypatch.setattr(os, "write", lambda file, data: plain(file, data[:7] if next(turns) in (1, 2) else data))
    log = written(tmp_path / "log", [some(n) for n in range(5)])
    assert log.lost == 2
    assert list(read_log(tmp_path / "log")) == [some(0), some(3), some(4)]


def test_requests_that_come_faster_than_the_disk_takes_them_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(request_log, "MAX_PENDING", 14)
    monkeypatch.setattr(request_log.threading.Thread, "start", lambda self: None)
    log = RequestLog(str(tmp_path / "log"))
    for n in range(10):
        log.add(some(n))
    assert log.lost == 7


def test_requests_wait_for_the_disk_by_their_tokens(tmp_path, monkeypatch):
    """As many as may be open at a verifier, of 128,000 tokens each, would take 20 GB."""
    monkeypatch.setattr(request_log.threading.Thread, "start", lambda self: None)
    log = RequestLog(str(tmp_path / "log"))
    for n in range(1000):
        log.add(LoggedRequest(prompt=(n,) * 100_000, text=(1,)))
    assert 900 < log.lost < 1000


@pytest.mark.parametrize("finish", [True, False])
def test_a_request_that_was_cancelled_is_not_logged(tmp_path, finish):
    async def main():
        log = RequestLog(str(tmp_path / "log"))
        async with Cluster(request_log=log, forward_s=0.01) as cluster:
            caller = await cluster.caller()
            if not finish:
                caller.send(Generate("r", (4,), sampling=Sampling(max_tokens=1000, ignore_eos=True)))
                await caller.until(lambda m: type(m).__name__ == "Chunk")
                caller.send(Cancel("r"))
            await caller.generate((5,), Sampling(max_tokens=1))
        log.close()

    run(main())
    assert [one.prompt for one in read_log(tmp_path / "log")] == [(5,)]
