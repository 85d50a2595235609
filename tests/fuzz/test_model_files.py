"""Some hundred changed model files, by a fixed seed: no start may end otherwise than in tokens or a sentence.
``python -m tests.fuzz.model_files`` tries as many as one likes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocols.errors import ModelError
from tests.fuzz import model_files
from tests.fuzz.model_files import SENTENCE, TOKENS, Corpus, Ending

pytest.importorskip("numba")
COUNTS = {"gguf": 120, "safetensors": 60}


@pytest.mark.parametrize("kind", COUNTS)
def test_a_start_with_a_changed_file_ends_in_tokens_or_in_one_sentence(kind: str) -> None:
    line = [sys.executable, "-m", "tests.fuzz.model_files", kind, "--count", str(COUNTS[kind])]
    done = subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert last.count(TOKENS) == last.count(SENTENCE) == 1, "some starts, and some are refused"


ENDS = {
    "tokens": (lambda: None, TOKENS),
    "a sentence": (lambda: _raise(ModelError("x is no model; download it again")), SENTENCE),
    "two lines": (lambda: _raise(ModelError("x\ny")), "no sentence"),
    "another error": (lambda: _raise(KeyError("x")), "KeyError"),
    "a signal": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "signal"),
    "an end without a word": (lambda: os._exit(3), "silent end"),
    "no end": (lambda: _spin(), "takes too long"),
    "too much memory": (lambda: bytearray(8 << 30), "MemoryError"),
}


def _raise(error: Exception) -> None:
    raise error


def _spin() -> None:
    while True:
        time.process_time()


@pytest.mark.parametrize("way", ENDS)
def test_every_way_to_end_is_told_from_the_others(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, kind = ENDS[way]
    monkeypatch.setattr(model_files, "start", lambda model: run())
    monkeypatch.setattr(model_files, "CPU_S", 1)
    assert model_files.ending_of(tmp_path / "model").kind == kind


def test_a_number_and_a_seed_make_the_same_changes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seed").write_bytes(bytes(100))
    contents: list[bytes] = []

    def change(path: Path, chance: random.Random) -> list[str]:
        path.write_bytes(chance.randbytes(9))
        contents.append(path.read_bytes())
        return ["all"]

    monkeypatch.setattr(model_files, "ending_of", lambda model, starts: Ending(TOKENS))
    corpus = Corpus({"one": tmp_path / "seed"}, change)
    for numbers in (range(3), range(2, 3)):
        assert [one.number for one in model_files.trials(corpus, 7, numbers)] == [*numbers]
    assert contents[2] == contents[3] and len(set(contents)) == 3
