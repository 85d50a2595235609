"""examples/nano: the algorithm and the wire once more, in under 1,000 lines that stand alone."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from protocols import messages

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano"
PAIR = ROOT / "duoactor" / "pair"
PROMPT = "The for statement"
HANG_S = 240  # only a hang reaches it


def load(name: str):
    """A module of nano that imports none of the others."""
    spec = importlib.util.spec_from_file_location(f"nano_{name}", NANO / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_under_1000_lines_and_imports_nothing_of_the_product():
    files = sorted(NANO.glob("*.py"))
    assert sum(len(file.read_text().splitlines()) for file in files) < 1000
    allowed = {*sys.stdlib_module_names, *(file.stem for file in files), "msgspec", "zmq", "numpy"}
    for file in files:
        for node in ast.parse(file.read_text()).body:  # torch is imported inside a function
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, file.name


def test_its_messages_begin_with_the_fields_of_the_standard():
    wire = load("wire")
    ours = {**vars(messages)}
    compared = 0
    for name, struct in vars(wire).items():
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and name not in ("Part", "Message"):
            fields, standard = struct.__struct_fields__, ours[name].__struct_fields__
            assert fields == standard[: len(fields)], name
            required = [field for field in msgspec.structs.fields(ours[name]) if field.required]
            assert len(required) <= len(fields), name
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize(
    ("name", "sampling", "more"),
    [
        ("top_p", {"top_p": 0.5}, {}),
        ("logit_bias", {"logit_bias": ((5, 1.0),)}, {}),
        ("min_tokens", {"min_tokens": 3}, {}),
        ("bad_words", {"bad_words": ("x",)}, {}),
        ("skip_special_tokens", {"skip_special_tokens": False}, {}),
        ("structured_outputs", {}, {"structured_outputs": messages.StructuredOutputs(regex="a")}),
        ("dictation", {}, {"dictation": messages.Dictation(tokens=(5,))}),
        ("deadline_ms", {}, {"deadline_ms": 9.0}),
    ],
)
def test_it_refuses_by_name_what_of_a_request_of_ours_it_cannot_honour(name, sampling, more, monkeypatch):
    monkeypatch.syspath_prepend(NANO)
    verifier, wire = (importlib.import_module(one) for one in ("verifier", "wire"))
    asked = messages.Generate("r", (5,), sampling=messages.Sampling(**sampling), **more)
    request = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=wire.ToVerifier)
    sent, nano = [], object.__new__(verifier.Verifier)
    nano.send = lambda peer, message: sent.append(message)
    nano.model = SimpleNamespace(vocab_size=10, max_context=10)
    nano.generate(b"peer", request)
    assert [(one.code, one.detail.partition(";")[0]) for one in sent] == [("unsupported", f"nano has no {name}")]


def test_its_noise_has_the_bits_of_the_products():
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    from actors.engines.sampling.noise import gumbel

    noise = load("noise")
    for seed, position in ((0, 0), (5, 17), (-1, 3), (2**64 - 1, 100_000)):
        own = noise.gumbel(seed, position, 1000)
        theirs = gumbel(seed, [position], 1000)[0].numpy()
        assert np.allclose(own, theirs, rtol=0, atol=1e-5)
        assert own.argmax() == theirs.argmax()
    assert torch.get_default_dtype() is torch.float32


# --- processes -------------------------------------------------------------------------------------------------------


class Processes:
    """Actors at one address."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, ready: str, *command: str) -> subprocess.Popen[str]:
        """Start an actor, and read what it says until it is ``ready``."""
        process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(process)
        said = ""
        while ready not in said:
            line = process.stdout.readline()
            assert line, f"{command} ended: {said}"
            said += line
        return process

    def nano(self, ready: str, role: str, *options: str) -> subprocess.Popen[str]:
        where = "--bind" if role == "verifier" else "--connect"
        return self.start(ready, str(NANO / f"{role}.py"), where, self.address, *options)

    def ours(self, ready: str, role: str, *options: str) -> subprocess.Popen[str]:
        where = "--bind" if role == "verifier" else "--connect"
        return self.start(ready, "-m", "duoactor", role, where, self.address, *options)

    def ask(self, *options: str, prompt: str = PROMPT) -> tuple[str, int]:
        """nano's client: the text, and how many of its tokens were drafts."""
        command = [sys.executable, str(NANO / "client.py"), prompt, "--connect", self.address, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
        text, _, summary = done.stdout.rpartition("\n\n")
        return text, int(summary.split("; ")[1].split()[0])

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    running = Processes()
    yield running
    running.stop()


@pytest.mark.processes
def test_nano_alone_gives_the_text_of_vanilla_also_where_its_drafter_is_killed_in_mid_stream(processes: Processes):
    processes.nano("ready at", "verifier", "--forward-ms", "20")
    drafter = processes.nano("connected", "drafter", "--forward-ms", "0")
    processes.nano("connected", "controller")
    for temperature in ("0", "0.8"):
        options = ("--temperature", temperature, "--seed", "3", "--max-tokens", "60")
        vanilla, none = processes.ask(*options, "--vanilla")
        drafted, some = processes.ask(*options)
        assert (drafted, none) == (vanilla, 0) and some > 0
    command = [sys.executable, str(NANO / "client.py"), PROMPT, "--connect", processes.address, *options]
    with contextlib.closing(subprocess.Popen(command, stdout=subprocess.PIPE, text=True).stdout) as output:
        begun = output.read(40)
        drafter.send_signal(signal.SIGKILL)
        text, _, summary = (begun + output.read()).rpartition("\n\n")
    assert text == vanilla
    assert int(summary.split("; ")[1].split()[0]) > 0


@pytest.mark.processes
def test_a_drafter_of_ours_serves_the_verifier_of_nano(processes: Processes):
    """It retrieves its drafts, so it needs neither torch nor a tokenizer."""
    processes.nano("ready at", "verifier", "--forward-ms", "20")
    processes.ours("connected to", "drafter", "--draft", "sam")
    vanilla, _ = processes.ask("--max-tokens", "50", "--vanilla")
    drafted, accepted = processes.ask("--max-tokens", "50")
    assert drafted == vanilla and accepted > 0


@pytest.mark.processes
def test_a_drafter_of_nano_serves_the_verifier_of_ours(processes: Processes):
    pytest.importorskip("torch")
    processes.ours("ready at", "verifier", "--target", "bundled", "--method", "tree")
    processes.nano("connected", "drafter", "--model", str(PAIR / "draft"), "--actor-id", "nano")

    def ask(method: str) -> dict:
        command = [sys.executable, "-m", "duoactor", "generate", "def factorial(n):", "--connect", processes.address]
        options = ["--method", method, "--temperature", "0.8", "--seed", "5", "--max-tokens", "80", "--ignore-eos"]
        done = subprocess.run(
            [*command, *options, "--json"], capture_output=True, text=True, timeout=HANG_S, check=True
        )
        return json.loads(done.stdout)

    text = ask("vanilla")["text"]

    def accepts() -> bool:
        drafted = ask("pearl")
        assert drafted["text"] == text
        return drafted["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0

    assert any(accepts() for _ in range(20))  # an answer takes 40 ms, and a busy machine wakes the drafter later
