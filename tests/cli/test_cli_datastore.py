"""`duoactor datastore build`, with the bundled model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.datastore import Datastore
from actors.engines.text.tokenizer import tokenizer_digest
from actors.engines.weights.loading import load_tokenizer
from duoactor.cli import main
from duoactor.config import resolve_model
from protocols.errors import ModelError


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("A dog is running. A dog is sleeping.")
    return str(tmp_path / "text.txt")


def test_it_builds_what_the_verifier_of_that_model_opens(tmp_path: Path, text: str, capsys):
    out = str(tmp_path / "store")
    assert main(["datastore", "build", out, text, "--json"]) == 0
    printed = capsys.readouterr()
    digest = tokenizer_digest(load_tokenizer(resolve_model("bundled", "target")))
    meta = Datastore.open(out, digest).meta
    assert json.loads(printed.out) == {"directory": out, "documents": 1, "tokens": meta.tokens}
    assert (meta.vocab_size, printed.err) == (8192, "")


def test_it_says_what_to_do_next_and_shows_progress_on_a_terminal_only(tmp_path: Path, text: str, capsys, monkeypatch):
    out = str(tmp_path / "store")
    assert main(["datastore", "build", out, text]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"wrote {out}: documents 1, tokens ")
    assert printed.out.endswith(f"use it with --datastore {out}\n")
    assert printed.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["datastore", "build", out, text]) == 0
    assert "1 of 1 files read, sorting …" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["store", "nowhere.txt"], 1, "cannot read nowhere.txt: No such file or directory"),
        (["store", "x", "--target", "./nowhere"], 1, "./nowhere does not exist"),
        (["store"], 2, "Missing argument 'FILES...'"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments, code, sentence, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["datastore", "build", *arguments]) == code
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("out", "sentence"), [("a.txt", "a.txt is a file"), (".", "holds other files")])
def test_what_is_no_datastore_is_not_written_over(tmp_path: Path, out, sentence, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a text")
    assert main(["datastore", "build", out, "a.txt"]) == 1
    assert sentence in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"] and Path("a.txt").read_text() == "a text"


def test_a_drafter_may_name_a_proposer_instead_of_a_model(tmp_path: Path, monkeypatch):
    (tmp_path / "pld").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("pld", "sam", "rest:a/b/store"):
        assert resolve_model(name, "draft") == name
    with pytest.raises(ModelError, match=r"^pld holds no config\.json"):  # a target of that name is a directory
        resolve_model("pld", "target")
