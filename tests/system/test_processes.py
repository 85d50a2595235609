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
from protocols.messages import Generate, Hello, Role
from tests.world.processes import WAIT_S, Up, command, run, until

pytestmark = pytest.mark.processes
PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
QUESTION = [{"role": "user", "content": "Tom has 12 apples and buys 7 more. How many apples does he have?"}]


def controller_pid(client) -> int:
    controller = client.status().controller
    return controller.pid if controller is not None else 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    up = Up(tmp_path_factory.mktemp("up"))
    yield up
    up.stop()


@pytest.fixture
def client(up):
    with Client(up.address, reconnect_timeout=WAIT_S) as client:
        until(lambda: client.status().drafters, "a drafter")
        yield client


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "tree", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_method_gives_vanillas_text(client, method, temperature):
    options = {"temperature": temperature, "seed": 11, "max_tokens": 60, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    assert plain.stats.draft_tokens == 0
    for _ in range(20):  # on a busy machine an answer may be over before a draft has come
        drafted = client.chat(QUESTION, method=method, **options)
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        if drafted.stats.draft_tokens > 0 or method == "tree":  # which waits for drafts only where that pays
            return
    pytest.fail("20 answers without a draft")


def test_logits_are_equal_bit_for_bit_not_only_the_text(client):
    options = {"max_tokens": 50, "ignore_eos": True, "logprobs": 2}
    plain = client.chat(QUESTION, method="vanilla", **options)
    for method in ("sps", "pearl", "duodecoding"):
        assert client.chat(QUESTION, method=method, **options).logprobs == plain.logprobs


def test_kill_9_of_the_drafter_in_mid_stream_costs_speed_only_and_it_comes_back(up, client):
    options = {"max_tokens": 400, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    victim = client.status().drafters[0]
    ids: list[int] = []
    for chunk in client.stream(messages=QUESTION, method="duodecoding", **options):
        ids += chunk.token_ids
        if victim is not None and len(ids) > 60:
            os.kill(victim.pid, signal.SIGKILL)
            dead, victim = victim.pid, None
    assert tuple(ids) == plain.token_ids
    until(lambda: any(d.pid != dead for d in client.status().drafters), "the drafter's successor")


def test_kill_9_of_the_controller_in_mid_stream_changes_no_token_and_its_successor_is_obeyed(up, client):
    options = {"max_tokens": 400, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    victim = until(lambda: controller_pid(client), "a controller")
    ids: list[int] = []
    killed = False
    for chunk in client.stream(messages=QUESTION, method="duodecoding", **options):
        ids += chunk.token_ids
        if len(ids) > 60 and not killed:
            killed = True
            os.kill(victim, signal.SIGKILL)
    assert tuple(ids) == plain.token_ids
    assert chunk.stats.draft_tokens > 0
    until(lambda: controller_pid(client) not in (0, victim), "the controller's successor")

    def said():
        client.chat(QUESTION, method="duodecoding", **options)
        return client.status().budgets

    assert until(said, "a budget of the successor")


def test_swapping_to_another_process_in_mid_stream_changes_no_token(up, client):
    options = {"max_tokens": 400, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    old = until(lambda: client.status().drafters, "a drafter")[0].actor_id
    other = subprocess.Popen(command("drafter", "--connect", up.address, "--actor-id", "other"))
    try:
        until(lambda: any(d.actor_id == "other" for d in client.status().drafters), "the other drafter")
        ids: list[int] = []
        swapped = False
        for chunk in client.stream(messages=QUESTION, method="pearl", **options):
            ids += chunk.token_ids
            if len(ids) > 60 and not swapped:
                swapped = True
                holder = next(d.actor_id for d in client.status().drafters if d.leases)
                client.swap(holder, "other" if holder == old else old)
        assert tuple(ids) == plain.token_ids
        assert set(chunk.stats.drafters) == {old, "other"}
        drained = run("drain", "other", "--connect", up.address)
        assert drained.returncode == 0, drained.stderr
        assert other.wait(WAIT_S) == 0
    finally:
        other.kill()


def test_kill_9_of_the_verifier_in_mid_stream_and_the_client_resumes_by_itself(up, client):
    options = {"max_tokens": 300, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    ids: list[int] = []
    killed = False
    for chunk in client.stream(messages=QUESTION, method="duodecoding", **options):
        ids += chunk.token_ids
        if len(ids) > 60 and not killed:
            killed = True
            os.kill(client.status().verifier.pid, signal.SIGKILL)
    assert tuple(ids) == plain.token_ids


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be pinned here")
def test_busy_loops_on_the_drafters_core_change_no_token(up, client):
    options = {"max_tokens": 150, "ignore_eos": True}
    plain = client.chat(QUESTION, method="vanilla", **options)
    drafter = until(lambda: client.status().drafters, "a drafter")[0]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(12)]
    try:
        for loop in loops:
            os.sched_setaffinity(loop.pid, os.sched_getaffinity(drafter.pid))
        for method in ("sps", "duodecoding", "auto"):
            assert client.chat(QUESTION, method=method, **options).token_ids == plain.token_ids
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


def test_the_commands_talk_to_it(up, client):
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


@pytest.mark.parametrize("name", ["/nowhere/model", "no-such-org/no-such-model"])
def test_an_unknown_model_is_one_sentence(tmp_path, name):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = run("verifier", "--target", name, "--bind", f"ipc://{tmp_path}/run/v.ipc", env=environment)
    assert result.returncode == 1
    said = [line for line in result.stderr.splitlines() if line != f"loading {name}"]
    assert len(said) == 1 and name in said[0]


def test_nobody_there_is_one_sentence(tmp_path):
    with pytest.raises(ConnectionLost, match="duoactor up"):
        Client(f"ipc://{tmp_path}/run/v.ipc", timeout=0.5).status()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_behind(request, tmp_path, how):  # the last: it stops what the others use
    own = Up(tmp_path) if how == signal.SIGKILL else request.getfixturevalue("up")
    with Client(own.address) as client:
        status = until(lambda: (now := client.status()).drafters and now.controller and now, "all actors")
    pids = [one.pid for one in (status.verifier, *status.drafters, status.controller)]
    assert len(pids) == 3 and all(alive(pid) for pid in pids)
    own.stop(how)
    until(lambda: not any(alive(pid) for pid in pids), "the actors to end")
    left = [p.name for p in (own.directory / "run").iterdir()] if (own.directory / "run").exists() else []
    assert left == [] or how == signal.SIGKILL
