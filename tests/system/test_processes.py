"""The product as people run it: real processes, the bundled pair, signals and sockets."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duoactor import Client, ConnectionLost
from protocols import wire
from protocols.messages import Generate, Hello, RequestStats, Role
from tests.system.conftest import kill, working
from tests.world.processes import WAIT_S, alive, run, until

pytestmark = pytest.mark.processes
PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
LONG = {"max_tokens": 400, "ignore_eos": True}
QUESTION = [{"role": "user", "content": "Tom has 12 apples and buys 7 more. How many apples does he have?"}]


@pytest.fixture
def client(up):
    up.status()
    with Client(up.address, reconnect_timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def plain(up) -> tuple[int, ...]:
    """The target's own text."""
    with Client(up.address) as client:
        return client.chat(QUESTION, method="vanilla", **LONG).token_ids


@pytest.mark.parametrize(
    ("method", "temperature"),
    [("sps", 0.8), ("pearl", 0.0), ("duodecoding", 0.8), ("tree", 0.0), ("auto", 0.0), ("auto", 0.8)],
)
def test_every_method_gives_vanillas_text(client, method, temperature):
    options = {"temperature": temperature, "seed": 11, "max_tokens": 60, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    assert plain.stats.draft_tokens == 0
    for _ in range(20):  # on a busy machine an answer may be over before a draft has come
        drafted = client.chat(QUESTION, method=method, **options)
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        if drafted.stats.draft_tokens > 0 or method == "tree":  # method tree waits for drafts only where that pays
            return
    pytest.fail("20 answers without a draft")


def test_logits_are_equal_bit_for_bit_not_only_the_text(client):
    options = {"max_tokens": 50, "ignore_eos": True, "logprobs": 2}
    plain = client.chat(QUESTION, method="vanilla", **options)
    for method in ("sps", "pearl", "duodecoding"):
        assert client.chat(QUESTION, method=method, **options).logprobs == plain.logprobs


def streamed(client, method: str, then) -> tuple[tuple[int, ...], RequestStats]:
    """A stream's tokens and figures; ``then`` is done when 60 of them have come."""
    ids: list[int] = []
    done = False
    for chunk in client.stream(messages=QUESTION, method=method, **LONG):
        ids += chunk.token_ids
        if len(ids) > 60 and not done:
            done = True
            then()
    return tuple(ids), chunk.stats


def test_kill_9_of_the_drafter_in_mid_stream_costs_speed_only_and_it_comes_back(up, client, plain):
    killed: list[int] = []

    def kill_it() -> None:
        killed.append((working(client.status()) or client.status().drafters[0]).pid)
        kill(killed[0])

    assert streamed(client, "duodecoding", kill_it)[0] == plain
    until(lambda: killed[0] not in {one.pid for one in up.status().drafters}, "the drafter's successor")


def test_kill_9_of_the_controller_in_mid_stream_changes_no_token_and_its_successor_is_obeyed(up, client, plain):
    victim = up.status().controller.pid
    tokens, stats = streamed(client, "duodecoding", lambda: kill(victim))
    assert tokens == plain and stats.draft_tokens > 0
    until(lambda: up.status().controller.pid != victim, "the controller's successor")

    def said():
        client.chat(QUESTION, method="duodecoding", **LONG)
        return client.status().budgets

    assert until(said, "a budget of the successor")


def test_swapping_to_another_process_in_mid_stream_changes_no_token(client, plain):
    drafters = {one.actor_id for one in client.status().drafters}

    def swap() -> None:
        holder = until(lambda: working(client.status()), "a drafter at work").actor_id
        client.swap(holder, *(drafters - {holder}))

    tokens, stats = streamed(client, "pearl", swap)
    assert tokens == plain and set(stats.drafters) == drafters


def test_kill_9_of_the_verifier_in_mid_stream_and_the_client_resumes_by_itself(client, plain):
    assert streamed(client, "duodecoding", lambda: kill(client.status().verifier.pid))[0] == plain


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be pinned here")
def test_busy_loops_on_the_drafters_core_change_no_token(client, plain):
    options = {"max_tokens": 60, "ignore_eos": True}
    drafter = client.status().drafters[0]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(12)]
    try:
        for loop in loops:
            os.sched_setaffinity(loop.pid, os.sched_getaffinity(drafter.pid))
        for method in ("sps", "auto"):
            assert client.chat(QUESTION, method=method, **options).token_ids == plain[:60]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_garbage_on_the_socket_harms_nobody(up, client):
    import zmq

    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(up.address)
    for frames in ([b"\x00" * 1000], [wire.HEADER, b"\xff\xff"], [b"GET / HTTP/1.1"], [b"", b"", b""]):
        dealer.send_multipart(frames)
    hello = Hello(Role.CLIENT, "odd", "1")
    dealer.send_multipart(wire.encode(hello))
    dealer.send_multipart(wire.encode(Generate("x", tuple(range(3000)))))
    assert len(client.chat(QUESTION, max_tokens=5, ignore_eos=True).token_ids) == 5
    dealer.close()
    context.term()


def test_the_commands_talk_to_it(up):
    status = run("status", "--json", "--connect", up.address)
    assert status.returncode == 0 and json.loads(status.stdout)
    drafters = run("drafters", "--json", "--connect", up.address)
    assert drafters.returncode == 0 and json.loads(drafters.stdout)
    text = run("generate", "Once", "--max-tokens", "8", "--connect", up.address)
    assert text.returncode == 0 and text.stdout.strip()
    document = run("generate", "Once", "--max-tokens", "8", "--json", "--connect", up.address)
    answer = json.loads(document.stdout)
    assert answer["text"].strip() == text.stdout.strip()
    assert "mean_acceptance_length" in json.dumps(answer)
    chat = run("chat", "--max-tokens", "8", "--connect", up.address, input="Hello\n")
    assert chat.returncode == 0 and chat.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", ""], "empty"),
        (["generate", "x", "--temperature", "-1"], "temperature"),
        (["generate", "x", "--method", "magic"], "magic"),
        (["swap", "nobody", "nothing"], "nobody"),
    ],
)
def test_a_bad_request_is_one_sentence_and_exit_code_1_or_2(up, client, arguments, words):
    result = run(*arguments, "--connect", up.address)
    assert result.returncode in (1, 2)
    assert words in result.stderr and "Traceback" not in result.stderr


def test_an_address_in_use_is_said_before_anything_is_loaded(up):
    result = run("verifier", "--bind", up.address)
    assert result.returncode == 1
    assert "in use" in result.stderr and "Traceback" not in result.stderr


def test_a_draft_model_with_another_tokenizer_is_refused_with_the_reason(up, client, tmp_path):
    shutil.copytree(PAIR / "draft", tmp_path / "draft")
    tokenizer = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = run("drafter", "--draft", str(tmp_path / "draft"), "--connect", up.address)
    assert result.returncode == 1
    assert "tokenizer" in result.stderr and "Traceback" not in result.stderr


def test_an_unknown_model_is_one_sentence(tmp_path):
    name = "no-such-org/no-such-model"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = run("verifier", "--target", name, "--bind", f"ipc://{tmp_path}/run/v.ipc", env=environment)
    assert result.returncode == 1
    said = [line for line in result.stderr.splitlines() if line != f"loading {name}"]
    assert len(said) == 1 and name in said[0]


def test_nobody_there_is_one_sentence(tmp_path):
    with pytest.raises(ConnectionLost, match="duoactor up"):
        Client(f"ipc://{tmp_path}/run/v.ipc", timeout=0.5).status()


def test_a_drained_drafter_leaves_and_nothing_is_left_behind_a_kill(up, client):  # the last: it ends what all use
    drained = up.status().drafters[1]
    done = run("drain", drained.actor_id, "--connect", up.address)
    assert done.returncode == 0, done.stderr
    until(lambda: not alive(drained.pid), "the drained drafter to end")
    up.stop(signal.SIGKILL)
