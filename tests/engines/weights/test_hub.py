"""Models come from the hub by their ids: against a server of the hub's own API on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from actors.engines.heads.cached import cached_models
from actors.engines.weights.hub import snapshot
from duoactor.launch.child import OutputLines

ROOT = Path(__file__).parents[3]
PROGRAM = """
import contextlib, io, json, sys
from duoactor.cli import main

said = []
for command in sys.argv[1:]:
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        main(command.split())
    said.append([stream.getvalue() for stream in streams])
print(json.dumps(said))
"""
COMMIT = "c0ffee" + 34 * "0"
CONFIG = b'{"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}'
REPOS: Mapping[str, dict[str, bytes]] = {
    "user/model": {
        "config.json": CONFIG,
        "tokenizer.json": b"{}",
        "model.safetensors": b"weights",
        "consolidated.safetensors": b"the same once more",
        "onnx/model.onnx": b"for others",
        "pytorch_model.bin": b"the same in another format",
    },
    "user/model-GGUF": {
        "model-Q4_K_M.gguf": b"four bits",
        "big/model-Q8_0-00001-of-00002.gguf": b"eight bits",
        "big/model-Q8_0-00002-of-00002.gguf": b"the rest",
        "mmproj-Q8_0.gguf": b"-",
    },
}


class Hub(BaseHTTPRequestHandler):
    """``/api/models/REPO``, ``/api/models/REPO/tree/…`` and ``/REPO/resolve/REVISION/FILE``."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/").removeprefix("api/models/")
        repo, rest = "/".join(path.split("/")[:2]), path.split("/")[2:]
        files = REPOS.get(repo)
        if repo == "user/closed":
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif files is None:
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["resolve"]:
            self._answer(200, files["/".join(rest[2:])])
        elif rest[:1] == ["tree"]:
            self._answer(200, json.dumps([_listed(name, body) for name, body in files.items()]).encode())
        else:
            siblings = [{"rfilename": name} for name in files]
            self._answer(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode())

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        etag = f'"{hashlib.sha1(body).hexdigest()}"'
        sent = {"X-Repo-Commit": COMMIT, "ETag": etag, "Content-Length": str(len(body)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _listed(name: str, body: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def run(hub: ThreadingHTTPServer, home: Path, *commands: str, **variables: str) -> list[tuple[str, str]]:
    """(stdout, stderr) of duoactor's commands, one after the other in a process that begins with these variables."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home), "NO_PROXY": "*"}
    command = [sys.executable, "-c", PROGRAM, *commands]
    return json.loads(subprocess.check_output(command, cwd=ROOT, env=environment | variables))


def test_a_model_and_a_quantisation_are_pulled_and_listed(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    wanted = ("user/model", "user/model-GGUF:Q4_K_M", "user/model-GGUF:Q8_0")
    *pulled, (listed, _) = run(hub, tmp_path, *(f"pull {name} --json" for name in wanted), "list --json")
    model, file, first = (Path(json.loads(answer)["path"]) for answer, _ in pulled)
    assert not pulled[0][1], "no progress where nobody reads it"
    assert {path.name for path in model.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (model / "model.safetensors").read_bytes() == b"weights"
    assert (file.name, file.read_bytes()) == ("model-Q4_K_M.gguf", b"four bits")
    assert [path.read_bytes() for path in sorted(first.parent.iterdir())] == [b"eight bits", b"the rest"]
    models = [one["model"] for one in json.loads(listed)]
    assert [name for name in models if name != "smollm2"] == [*wanted]  # a package may bring that one
    # What is here already is served without a hub
    hub.shutdown()
    hub.server_close()
    again = run(hub, tmp_path, *(f"pull {name} --json" for name in wanted[:2]))
    assert [json.loads(answer)["path"] for answer, _ in again] == [str(model), str(file)]


@pytest.mark.parametrize("model", ["user/model", "user/model-GGUF:Q4_K_M"])
def test_a_download_below_a_supervisor_says_how_much_is_here(hub, tmp_path, monkeypatch, model: str) -> None:
    monkeypatch.setitem(REPOS["user/model"], "model.safetensors", bytes(3_000_000))
    monkeypatch.setitem(REPOS["user/model-GGUF"], "model-Q4_K_M.gguf", bytes(3_000_000))
    [(_, progress)] = run(hub, tmp_path, f"pull {model} --json", TQDM_POSITION="-1")
    lines, shown = [], []
    output = OutputLines(lines.append, shown.append)
    output.feed(progress.encode())
    output.feed(b"a line behind it\n")
    assert f"downloading {model}: 0 of 3 MB" in progress and "Fetching" not in progress
    assert (shown[-1].strip(), lines) == ("", ["a line behind it"])


REFUSED = {
    "user/none": "neither a directory here nor a hub id that can be reached",
    "user/none:Q4_0": "repository user/none cannot be reached and is not in the cache; check the name",
    "user/model-GGUF:Q2_K": "has no file of Q2_K; it has big/model-Q8_0-00001-of",
    "user/model-GGUF": "has GGUF files: name one, as in user/model-GGUF:Q4_K_M; it has big/",
    "user/closed": "asks for its terms to be accepted",
}


def test_what_the_hub_does_not_give_is_told_in_a_sentence(hub, tmp_path) -> None:
    answers = run(hub, tmp_path, *(f"pull {model}" for model in REFUSED))
    for (_, error), said in zip(answers, REFUSED.values(), strict=True):
        assert said in error and "Traceback" not in error


def test_a_cache_below_the_home_of_another_user_counts_as_empty(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "hub").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    home.chmod(0)
    me = os.geteuid()
    try:
        if me == 0:  # whom no mode keeps out
            os.seteuid(65534)
        assert list(cached_models()) == [] and snapshot("owner/name") is None
    finally:
        os.seteuid(me)
        home.chmod(0o700)
