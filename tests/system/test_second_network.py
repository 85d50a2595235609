"""A drafter on another network stack: its own network namespace, tcp over a virtual cable, CURVE keys."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.processes import command, run, until

pytestmark = pytest.mark.processes
HERE, THERE = "10.77.0.1", "10.77.0.2"
ADDRESS = f"tcp://{HERE}:7601"
ASK = ("generate", "Once upon a time", "--max-tokens", "40", "--ignore-eos", "--json")


class Namespace:
    """A network stack of its own; ``enter`` is what a command in it begins with."""

    def __init__(self, user: str = "") -> None:
        """``user``: the process in whose user namespace it lies; empty: in a new one, where we may do everything."""
        own = ["nsenter", "-t", user, "-U", "--preserve-credentials"] if user else []
        flags = ["-n"] if user else ["-r", "-n"]
        self.process = subprocess.Popen(
            [*own, "unshare", *flags, "sh", "-c", "echo on; exec sleep infinity"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        if self.process.stdout.readline() != "on\n":
            pytest.skip(f"no network namespace can be made here: {self.process.stderr.read().strip()}")
        self.pid = str(self.process.pid)
        self.enter = ["nsenter", "-t", self.pid, "-U", "-n", "--preserve-credentials"]

    def run(self, *words: str) -> None:
        done = subprocess.run([*self.enter, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"`{' '.join(words)}` does not work here: {done.stderr.strip()}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stacks() -> Iterator[tuple[Namespace, Namespace]]:
    """Two, with a cable between them."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    here = Namespace()
    try:
        there = Namespace(here.pid)
        try:
            here.run("ip", "link", "add", "far0", "type", "veth", "peer", "name", "far1", "netns", there.pid)
            for stack, end, address in ((here, "far0", HERE), (there, "far1", THERE)):
                stack.run("ip", "link", "set", "lo", "up")
                stack.run("ip", "addr", "add", f"{address}/24", "dev", end)
                stack.run("ip", "link", "set", end, "up")
            yield here, there
        finally:
            there.end()
    finally:
        here.end()


def test_a_drafter_drafts_over_a_second_network_stack_with_keys_and_the_text_is_the_targets(
    stacks: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    here, there = stacks
    for name, role in (("verifier", "client"), ("laptop", "drafter"), ("admin", "operator")):
        run("keys", name, "--role", role, "--directory", "keys", cwd=tmp_path)
    near = ("--key", "keys/admin.key", "--server-key", "keys/verifier.pub", "--connect", ADDRESS)
    far = ("--key", "keys/laptop.key", "--server-key", "keys/verifier.pub", "--connect", ADDRESS)
    listens = ("--bind", f"tcp://{HERE}:7601", "--key", "keys/verifier.key", "--allow", "keys")

    def ask(*words: str) -> dict:
        done = run(*words, *near, cwd=tmp_path, enter=here.enter)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    log = (tmp_path / "log").open("w")
    started = [
        subprocess.Popen([*stack.enter, *command(*words)], cwd=tmp_path, stdout=log, stderr=log)
        for stack, words in (
            (here, ("verifier", *listens, "--inline-draft", "none")),
            (there, ("drafter", "--actor-id", "laptop", *far)),
        )
    ]
    try:
        until(lambda: ask("status", "--json").get("drafters"), "the drafter to be known")
        plain, drafted = ask(*ASK, "--method", "vanilla"), ask(*ASK, "--method", "pearl")
        assert drafted["token_ids"] == plain["token_ids"] and len(plain["token_ids"]) == 40
        [laptop] = until(
            lambda: ask("status", "--json").get("drafters"), "the drafter, which starving drops, to be back"
        )
        assert laptop["actor_id"] == "laptop" and laptop["accepted"] > 0
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        log.close()
