"""``duoactor up`` as a process, with small programs in place of the actors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.settings import VerifierSettings
from duoactor.cli import main
from duoactor.cli.up import _tell
from duoactor.launch.default_http import default_http
from duoactor.launch.deployment import deploy
from duoactor.launch.summary import connection_flags, print_summary
from duoactor.launch.wanted import Wanted
from protocols.address import parse
from protocols.extras import install
from protocols.ipc import IpcClaim

PROGRAM = '''
import sys
from duoactor import embedded
from duoactor.cli import main
from duoactor.cli.environment import Environment
from protocols.messages import ActorStatus, DrafterStatus, StatusReport, TargetStatus

LIVES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
ANSWERS = """
import http.server, os, re, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok", "pid": %d}' % os.getpid())
    def log_message(self, *_): ...
http.server.HTTPServer(("127.0.0.1", int(re.findall("[0-9]+", sys.argv[1])[-1])), Health).serve_forever()
"""
FAILS = "print('duoactor: there is no model x: name another'); raise SystemExit(1)"


def command(role, *arguments):
    if role == "serve":
        said = [a for a in arguments if a.startswith("--http")]
        return (sys.executable, "-S", "-c", ANSWERS, said[0] if said else "8000")
    return (sys.executable, "-S", "-c", FAILS if FAIL and role == "verifier" else LIVES)


def probe(deployment):
    async def ask():
        import os, subprocess
        pids = [int(p) for p in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()]
        if len(pids) < 3:
            return None
        drafter = DrafterStatus("d", "m", "active", 0, 0.0, 0, 0, 0, pid=pids[1])
        return StatusReport(
            "", "", 0.0, TargetStatus("m", "", "", 0, 0, 0, (), True, 1, "0", "1", 100.0),
            ActorStatus("v", pid=pids[0]), drafters=(drafter,), controller=ActorStatus("c", pid=pids[2]),
        )
    return ask


embedded.first = lambda *_: "bundled"  # the large one takes a while to write
sys.exit(main(sys.argv[1:], Environment(command=command, probe=probe)))
'''

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def start(tmp_path: Path, *arguments: str, fail: bool = False, bind: bool = True, **options) -> subprocess.Popen[str]:
    where = [f"--bind=ipc://{tmp_path}/v.sock"] if bind else []
    return subprocess.Popen(
        [sys.executable, "-c", f"FAIL = {fail}\n{PROGRAM}", *arguments, *where],
        **options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def document(process: subprocess.Popen[str]) -> dict[str, object]:
    """The one JSON document, read while the process goes on."""
    text = ""
    assert process.stdout
    for line in process.stdout:
        text += line
        if line == "}\n":
            return json.loads(text)
    raise AssertionError(f"it ended: {text}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_prints_its_actors_once_and_a_signal_ends_them_all(tmp_path: Path, number: signal.Signals):
    process = start(tmp_path, "up", "--json", "--http=none")
    found = document(process)
    assert found["address"] == f"ipc://{tmp_path}/v.sock"
    assert (found["target"]["threads"], found["target"]["tokens_per_second"]) == (1, 100.0)
    actors = found["actors"]
    assert isinstance(actors, list)
    assert [actor["role"] for actor in actors] == ["verifier", "drafter", "controller"]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert not [actor for actor in actors if os.path.exists(f"/proc/{actor['pid']}")]
    assert list(tmp_path.iterdir()) == []


def test_up_shows_an_actors_own_sentence_and_ends(tmp_path: Path):
    process = start(tmp_path, "up", "--http=none", fail=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines() == ["duoactor: verifier: there is no model x: name another"]


def test_the_summary_says_how_to_connect(tmp_path: Path):
    process = start(tmp_path, "up", "--http=none")
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(13)]
    process.terminate()
    process.communicate(timeout=60)
    assert f"duoactor is up at ipc://{tmp_path}/v.sock\n" in lines
    assert f'Try:   duoactor generate --connect ipc://{tmp_path}/v.sock "def factorial(n):"\n' in lines
    shown = "".join(lines)
    for words in (
        "1 thread for the target, on CPU 0; CPU 1 too",
        "100 tokens/s",
        "bundled draft model",
        "duoactor up smollm2",
    ):
        assert words in shown


def test_what_to_try_does_not_show_the_verifiers_secret_key():
    settings = VerifierSettings(bind="tcp://127.0.0.1:7601", key="keys/verifier.key", allow="keys")
    flags = connection_flags(deploy(Wanted(settings, ()), cpus=(0,)))
    assert flags[:4] == ["--connect", "tcp://127.0.0.1:7601", "--key", "YOUR.key"]
    assert flags[5].endswith("keys/verifier.pub")


def test_a_command_to_try_fits_a_terminal_and_can_be_pasted(monkeypatch, capsys):
    flags = ["--connect", "tcp://127.0.0.1:7601", "--key", "YOUR.key", "--server-key", "/home/me/a b/verifier.pub"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("duoactor.render.width", lambda terminal: 80)
    print_summary("tcp://127.0.0.1:7601", [], [("memory", f"{'x' * 54} --kv-tokens")], flags)
    shown = capsys.readouterr().out
    assert f"\n{' ' * 17}--kv-tokens\n" in shown
    tried = shown.partition("Try:   ")[2].partition("See:   ")[0]
    assert max(map(len, f"Try:   {tried}".splitlines())) <= 80
    assert shlex.split(tried.replace("\\\n", "")) == ["duoactor", "generate", *flags, "def factorial(n):"]


def test_a_full_disk_behind_the_summary_does_not_end_what_serves(monkeypatch: pytest.MonkeyPatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        deployment = deploy(Wanted(VerifierSettings(bind="ipc:///x"), ()), cpus=(0,))
        _tell(deployment, SimpleNamespace(actors=[], status=None), as_json=False)
        print("and nothing of it is left to be written at the end")
        with contextlib.suppress(OSError):
            full.close()


def test_a_public_address_without_keys_is_refused_with_the_commands_before_anything_starts(tmp_path: Path):
    process = start(tmp_path, "up", "--http=none", "--bind=tcp://0.0.0.0:7655", bind=False)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert len(err.splitlines()) == 1
    for needed in ("duoactor keys verifier --directory keys", "--key keys/verifier.key --allow keys"):
        assert needed in err


def test_an_address_in_use_is_told_before_anything_starts(tmp_path: Path):
    tmp_path.chmod(0o700)
    claim = IpcClaim(parse(f"ipc://{tmp_path}/v.sock"))
    out, err = start(tmp_path, "up", "--http=none").communicate(timeout=60)
    claim.release()
    assert out == ""
    assert err.startswith("duoactor: address ipc://") and "in use" in err and len(err.splitlines()) == 1


def test_a_script_can_interrupt_what_it_started_in_the_background(tmp_path: Path):
    process = start(
        tmp_path, "up", "--json", "--http=none", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    actors = document(process)["actors"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not [actor for actor in actors if os.path.exists(f"/proc/{actor['pid']}")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_up_with_http_has_a_gateway_that_is_ready_when_it_answers(tmp_path: Path):
    port = free_port()
    process = start(tmp_path, "up", "--json", f"--http=127.0.0.1:{port}", "--api-key=a", "--api-key=b")
    found = document(process)
    actors = found["actors"]
    assert isinstance(actors, list)
    assert [actor["role"] for actor in actors] == ["verifier", "drafter", "controller", "gateway"]
    assert actors[-1]["endpoint"] == f"http://127.0.0.1:{port}/v1"
    process.terminate()
    process.communicate(timeout=60)
    assert not [actor for actor in actors if os.path.exists(f"/proc/{actor['pid']}")]


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--http=none", "--api-key=x"], 2, "--api-key is the gateway's: leave --http none out"),
        (["--http=127.0.0.1:0"], 1, "leaves the port open"),
        (["--http=nowhere"], 1, "is no HTTP address"),
    ],
)
def test_a_gateway_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, flags, code, sentence):
    process = start(tmp_path, "up", *flags)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert sentence in err


def test_a_file_with_several_models_needs_a_port(tmp_path, capsys):
    file = tmp_path / "duo.toml"
    file.write_text('[models.a]\ntarget = "bundled"\n')
    assert main(["up", "--http", "none", "--config", str(file)]) == 2
    assert "leave --http none out" in capsys.readouterr().err
    assert main(["up", "bundled", "--config", str(file)]) == 2
    assert f"{file} has [models]: leave bundled out" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def taken(monkeypatch) -> Iterator[int]:
    """The gateway's usual port, which somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr("duoactor.launch.default_http.DEFAULT_PORT", port)
        yield port


def test_http_is_at_the_next_port_where_the_usual_one_is_taken(taken: int):
    found = default_http(asked=False, keyed=False)
    port = int(found.address.removeprefix("127.0.0.1:"))
    assert taken < port < taken + 100
    assert found.news == f"port {taken} is taken: HTTP is at port {port}"


def test_two_starts_within_a_second_choose_two_ports(taken: int):
    """Neither gateway listens yet."""
    first, second = default_http(asked=False, keyed=False), default_http(asked=False, keyed=False)
    assert first.address != second.address
    assert first.claim is not None and second.claim is not None
    first.claim.release()
    assert default_http(asked=False, keyed=False).address == first.address


def test_old_connections_take_no_port(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # it closes first, and waits for what may come late
            client.recv(1)
    monkeypatch.setattr("duoactor.launch.default_http.DEFAULT_PORT", port)
    assert default_http(asked=False, keyed=False)[:2] == (f"127.0.0.1:{port}", "")


def test_without_the_extra_there_is_no_http_unless_it_is_asked_for(monkeypatch, taken: int):
    monkeypatch.setattr("duoactor.launch.default_http.find_spec", lambda name: None if name == "uvicorn" else name)
    sentence = f"no HTTP, which needs uvicorn: {install('serve')}"
    assert default_http(asked=False, keyed=False)[:2] == ("none", sentence)
    assert default_http(asked=True, keyed=False).address != "none"  # and the gateway says what it needs


def test_a_verifier_that_asks_for_keys_is_not_opened_by_the_usual_gateway(taken: int):
    address, sentence, _ = default_http(asked=False, keyed=True)
    assert address == "none" and "--api-key" in sentence


def test_up_serves_http_and_prints_the_pages_address(tmp_path: Path):
    process = start(tmp_path, "up", "bundled")
    assert process.stdout
    shown = "".join(iter(process.stdout.readline, "Stop:  Ctrl-C\n"))
    process.terminate()
    process.communicate(timeout=60)
    url = re.search(r"page +(http://127\.0\.0\.1:8\d\d\d)/ in a browser\n", shown)
    assert url and f"curl {url[1]}/v1/models\n" in shown


def test_a_port_alone_is_one_of_this_host(tmp_path: Path):
    port = free_port()
    process = start(tmp_path, "up", "--model", "bundled", "--json", "--port", str(port))
    actors = document(process)["actors"]
    process.terminate()
    process.communicate(timeout=60)
    assert isinstance(actors, list) and actors[-1]["endpoint"] == f"http://127.0.0.1:{port}/v1"


def test_a_model_that_is_named_twice_is_refused(capsys):
    assert main(["up", "a", "--target", "b"]) == 2
    assert "the model is named twice: a, and --target b" in capsys.readouterr().err
