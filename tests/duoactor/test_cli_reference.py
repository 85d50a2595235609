"""The yardstick program that the demo runs: one document in, one document out."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from duoactor.config import resolve_model


def test_the_reference_reads_a_task_and_prints_one_document():
    task = {"model": resolve_model("bundled", "target"), "prompts": ["Hello", "Two plus two?"], "max_tokens": 4}
    command = [sys.executable, "-m", "actors.engines.reference"]
    done = subprocess.run(command, input=msgspec.json.encode({**task, "repeats": 2}), capture_output=True, check=True)
    result = msgspec.json.decode(done.stdout)
    assert [len(ids) for ids in result["token_ids"]] == result["tokens"]
    assert all(1 <= count <= 4 for count in result["tokens"])
    assert result["tokens_per_second"] > 0 and len(result["seconds"]) == 2
