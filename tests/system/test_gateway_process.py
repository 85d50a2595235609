"""The gateway as people run it: ``duoactor up --http``, the stock openai client, kills in the middle of an answer."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI

from duoactor import Client
from tests.system.conftest import KEY, kill, working
from tests.world.processes import WAIT_S, below, free_port, run, until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes
TURNS = [{"role": "user", "content": "Tell me about a dog that finds a house."}]
ASK = {"messages": TURNS, "max_tokens": 120, "temperature": 0.8, "seed": 11, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(up):
    with OpenAI(base_url=f"{up.http}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def truth(up) -> str:
    """The target's own text, as our own client gets it."""
    with Client(up.address) as own:
        return own.chat(TURNS, max_tokens=120, temperature=0.8, seed=11, ignore_eos=True, method="vanilla").text


def streamed(client: OpenAI, after: int = -1, then=lambda: None, **changes) -> str:
    """The text, streamed; ``then`` is done when ``after`` pieces have come."""
    text = ""
    for count, chunk in enumerate(client.chat.completions.create(model="bundled", stream=True, **{**ASK, **changes})):
        text += chunk.choices[0].delta.content or ""
        if count == after:
            then()
    return text


def test_it_streams_the_targets_text_through_kills_of_drafter_and_verifier(up, client, truth):
    assert streamed(client) == truth
    assert streamed(client, 10, lambda: kill((working(up.status()) or up.status().drafters[0]).pid)) == truth
    assert streamed(client, 10, lambda: kill(up.status().verifier.pid)) == truth


def test_no_command_line_below_up_tells_a_key(up):
    started = below(up.process.pid)[1:]
    assert len(started) >= 4
    assert not [pid for pid in started if KEY in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize("wrong", [["--connect", "foo"], ["--key", "nowhere.key"]])
def test_what_can_never_be_right_ends_it_with_a_sentence(wrong, tmp_path):
    done = run("serve", "--http", f"127.0.0.1:{free_port()}", *wrong, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("duoactor: ") and len(done.stderr.splitlines()) == 1


def test_the_example_of_tools_calls_its_function_and_hands_the_result_back(up):
    code = (ROOT / "examples" / "openai_tools.py").read_text()
    code = code.replace("http://127.0.0.1:8000", up.http).replace('api_key="none"', f'api_key="{KEY}"')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert re.match(r'get_weather\(\{"city": "(Paris|Tokyo|Lagos)", "unit": "\w+"\}\)\n', done.stdout)


def test_sixteen_at_once_are_answered_and_the_counters_add_up(up, client):
    def generated() -> int:
        found = re.search(r"^duoactor:generation_tokens_total (\S+)", httpx2.get(f"{up.http}/metrics").text, re.M)
        return int(float(found[1]))

    def one(seed: int):
        return client.chat.completions.create(model="bundled", **{**ASK, "seed": seed, "max_tokens": 40})

    before = generated()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(16)))
    assert [answer.usage.completion_tokens for answer in answers] == [40] * 16
    assert len({answer.choices[0].message.content for answer in answers}) == 16
    assert generated() - before == 16 * 40


def test_closing_the_connection_ends_the_request(up, client):
    stream = client.chat.completions.create(model="bundled", stream=True, **{**ASK, "max_tokens": 2000})
    next(iter(stream))
    with Client(up.address) as own:
        assert own.status().requests
        stream.close()
        until(lambda: not own.status().requests, "the request to be gone")


def test_a_killed_gateway_comes_back_and_the_verifier_never_noticed(up, client, truth):
    pid = up.gateway()
    kill(pid)
    until(lambda: up.gateway() != pid, "the gateway to be back")
    assert streamed(client) == truth
