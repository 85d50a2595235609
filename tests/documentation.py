"""Pages whose code blocks are run: each page becomes one bash script, and `duoactor up` in it a process that stays.

What runs is what stands there, but for the stand-ins below. A block that cannot run is preceded by a comment that says
why: ``<!-- not run: needs a GPU -->``. Blocks in another language than these (``text``, ``json`` …) only show.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from duoactor.cli import cli

ROOT = Path(__file__).parents[1]
RUN = ("bash", "console", "python")
SHOWN = ("text", "json", "toml", "yaml", "ini", "mermaid", "promql", "nginx", "haproxy", "caddy")
LIMIT_S = 900  # only a hang reaches it

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run: (.+?) -->\s*\Z")

# One deployment for all that ask for no more than a part of it.
SHARED_START = "duoactor up --http 127.0.0.1:8000 --drafters 2"
# Hosts and models that are elsewhere are here; what takes minutes is made short.
STAND_INS: Mapping[str, str] = {
    r" (?:--target )?Qwen/Qwen3-8B --draft Qwen/Qwen3-0\.6B": "",
    r"(?m)(^duoactor (?:run|chat)) smollm2": r"\1 bundled",
    r" (?:smollm2|--target HuggingFaceTB/SmolLM2-135M-Instruct)\b": "",
    r"gpu-box|0\.0\.0\.0": "127.0.0.1",
    r"python3 -m venv --upgrade-deps \.venv && \. \.venv/bin/activate": "",
    r"pytest -n auto --dist loadscope": "pytest --version",
    r"duoactor demo\b": "duoactor demo --target bundled --max-tokens 8 --repeats 1",
    r"(measure_gateway\.py) 1 16 64": r"\1 2",
    r"(?m)^duoactor up(?: --http 127\.0\.0\.1:8000)?(?: --drafters 2)?(?= *(?:#|$))": SHARED_START,
}

PRELUDE = r"""
set -euo pipefail
quick_doctor="import sys; from duoactor import __main__, doctor; doctor.SECONDS = 1; sys.exit(__main__.run())"
declare -A started=() commands=()
stop() { kill "$1" 2>/dev/null && wait "$1" || true; }
trap 'code=$?; [ $code = 0 ] || echo "FAILED: $here" >&2; for pid in "${started[@]}"; do stop $pid; done' EXIT
stay() {  # stay NAME READY COMMAND…: start it, and wait until it says that it is READY
    local name=$1 ready=$2 log; shift 2
    [ "${commands[$name]:-}" != "$*" ] || return 0
    log=$(mktemp)
    "$@" >"$log" 2>&1 &
    started[$name]=$! commands[$name]=$*
    until grep -q "$ready" "$log"; do
        kill -0 $! 2>/dev/null || { cat "$log" >&2; return 1; }
        sleep 0.05
    done
}
duoactor() {
    case $1 in
    up)
        [[ ${2:-} = [!-]* || $* = *--target* || $* = *--config* ]] || set -- "$@" --target bundled
        [[ $* = *--http* ]] || set -- "$@" --http 127.0.0.1:8000  # a port of this shell's own
        if [ "${commands[up]:-}" != "command duoactor $*" ]; then
            for name in "${!started[@]}"; do stop "${started[$name]}"; done
            started=() commands=()
        fi
        stay up "is up at" command duoactor "$@"
        ;;
    verifier) stay verifier "ready at" command duoactor "$@" ;;
    drafter | controller) stay $1 "connected to" command duoactor "$@" ;;
    serve) stay gateway serving command duoactor "$@" ;;
    doctor)
        [[ $* = *--target* ]] || set -- "$@" --target bundled
        python -c "$quick_doctor" "$@"
        ;;
    demo)  # pages name it more than once, and it starts actors of its own
        [ "${demo:-}" = "$*" ] || command duoactor "$@"
        demo=$*
        ;;
    top) command duoactor top --help >/dev/null ;;  # a screen, which tests/cli runs in a pseudo-terminal
    *) command duoactor "$@" ;;
    esac
}
pip() { :; }  # check_extras has read it
curl() { command curl --silent --show-error --fail-with-body "$@"; }
"""


@dataclass(frozen=True, slots=True)
class Block:
    where: str  # page:line
    language: str
    code: str
    not_run: str = ""  # why

    @property
    def script(self) -> str:
        if self.language == "python":
            return f"python - <<'END_OF_BLOCK'\n{self.code}END_OF_BLOCK\n"
        if self.language == "console":
            return "".join(line[2:] + "\n" for line in self.code.splitlines() if line.startswith("$ "))
        return self.code


def check_extras(script: str) -> None:
    """Raises LookupError for an extra of ours in pip's arguments that there is not; tests/test_packaging.py builds."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"^pip install .*?'(?:duoactor|\.)\[(.+)\]'", script, re.MULTILINE):
        for extra in extras.split(","):
            known[extra]


def pages() -> list[Path]:
    """Every page with a block of code."""
    found = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("duoactor/**/*.md"),
    ]
    return sorted(page for page in found if FENCE.search(page.read_text()))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        mark = MARK.search(text[: fence.start()])
        indent = fence["indent"]
        code = "".join(part.removeprefix(indent) for part in fence["code"].splitlines(keepends=True))
        reason = mark[1] if mark else ""
        found.append(Block(f"{page.relative_to(ROOT)}:{line}", fence["language"].strip(), code, reason))
    return found


def start_of(code: Iterable[Block]) -> str:
    """The first command that starts the actors; empty: there is none."""
    starts = re.search(r"^duoactor up\b.*?(?= *#|$)", "\n".join(block.code for block in code), re.MULTILINE)
    return shared(starts[0]) if starts else ""


def shared(start: str) -> str:
    start = start.removesuffix(" --drafters 0")  # an example's own drafter also drafts beside others
    return SHARED_START if set(start.split()) <= set(SHARED_START.split()) else start


def example_block(example: Path) -> tuple[str, Block]:
    """What an example's first lines say: the command that starts the actors (empty: they say none), and those that run
    it, or why none does ("Not run by the tests: …")."""
    said = example.read_text().split('"""')[1]
    start = re.search(r"^Start the actors first: +(.+)$", said, re.MULTILINE)
    beside = re.findall(r"^Beside them: +(.+)$", said, re.MULTILINE)
    then = re.findall(r"^(?:Needs|Then|Or): +(.+)$", said, re.MULTILINE)
    name = str(example.relative_to(ROOT))
    if left_out := re.search(r"^Not run by the tests: (.+)$", said, re.MULTILINE):
        return "", Block(name, "bash", "", left_out[1])
    if not (start and then):
        return "", Block(name, "bash", "")
    lines = [*(f"stay beside 'connected to' {line}" for line in beside), *then]
    return shared(start[1]), Block(name, "bash", "".join(line + "\n" for line in lines))


def run(parts: Iterable[Block], directory: Path, ports: Mapping[str, int]) -> None:
    """Run the blocks in order, in one shell, in a directory with examples and docs; the first failure fails.

    ``ports``: free ones in place of those that the pages name.
    """

    def here(text: str) -> str:
        for port, free in ports.items():
            text = text.replace(f":{port}", f":{free}")
        return text

    for name in ("examples", "docs"):  # commands may write there
        shutil.copytree(ROOT / name, directory / name)
    for example in (*directory.glob("examples/*.py"), *directory.glob("examples/*.sh")):
        example.write_text(here(example.read_text()))
    (directory / "run").mkdir(mode=0o700)
    script = PRELUDE + "".join(f"\nhere='{block.where}'\n{block.script}" for block in parts)
    check_extras(script)
    for pattern, stand_in in STAND_INS.items():
        script = re.sub(pattern, stand_in, script)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(directory / "run"),
        "TMPDIR": str(directory),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (directory / "output").open("w") as output:  # no pipe: what stays would hold it open
        shell = subprocess.Popen(
            ["bash", "-c", here(script)],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        code = shell.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert code == 0, (directory / "output").read_text()[-6000:]


def check_options(block: Block) -> None:
    """Parse, without running, the duoactor commands of a block: there are such commands, and such options."""
    for line in block.script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["duoactor"]:
            check_command(words[1:])


def check_command(arguments: list[str]) -> None:
    """Raises click's UsageError for a command or an option that duoactor does not have."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and arguments:
        found = command.get_command(context, arguments[0])
        if found is None:
            break
        command, arguments = found, arguments[1:]
    assert command is not cli, f"duoactor has no command {arguments}"
    command.make_context(command.name, list(arguments))
