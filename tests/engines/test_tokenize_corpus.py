import json

import pytest

import duoactor
from actors.datastore import Datastore, Retrieval
from actors.engines.text.tokenize_corpus import build_from_files, read_documents, without_specials
from actors.engines.weights.loading import load_tokenizer
from actors.proposals import propose
from protocols.errors import ConfigError


def spelled(texts):
    return [list(text.encode()) for text in texts]


def test_text_files_are_one_document_each_and_jsonl_lines_one_each(tmp_path):
    (tmp_path / "a.txt").write_text("first\nsecond")
    rows = [{"text": "x"}, "y", {"prompt": "p", "completion": "c"}, {"turns": ["t", "u"]}]
    rows += [{"messages": [{"role": "user", "content": "m"}]}, {"conversations": [{"from": "human", "value": "v"}]}]
    (tmp_path / "b.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    assert list(read_documents(tmp_path / "a.txt")) == ["first\nsecond"]
    assert list(read_documents(tmp_path / "b.jsonl")) == ["x", "y", "p\nc", "t\nu", "m", "v"]


def test_a_datastore_of_files_gives_back_their_continuations(tmp_path):
    (tmp_path / "a.txt").write_text("the quick brown fox")
    (tmp_path / "b.jsonl").write_text('{"text": "the quick brown dog"}\n')
    calls = []
    meta = build_from_files(
        tmp_path / "store",
        [tmp_path / "a.txt", tmp_path / "b.jsonl"],
        spelled,
        256,
        "digest",
        lambda *at: calls.append(at),
    )
    assert (meta.documents, calls) == (2, [(1, 2), (2, 2)])
    store = Datastore.open(tmp_path / "store", "digest")
    proposed = propose(Retrieval(store), list(b"a quick brown "), 64)
    assert sorted(proposed.tokens) == sorted(b"dogfox")
    assert proposed.parents.count(-1) == 2


def test_the_models_own_tokenizer_is_used_without_special_tokens(tmp_path):
    model = next(iter(duoactor.__path__)) + "/pair/target"
    tokenize = without_specials(load_tokenizer(model))
    first, second = tokenize(["A dog is running.", "Two"])
    assert len(first) > 3
    assert not {0, 1} & {*first, *second}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b'{"text": "x"}\n{oops\n', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"n": 5}\n', "a.jsonl line 2 has no text"),
        ("a.txt", b"\xff\xfe", "a.txt: it is not UTF-8"),
        ("a.txt", b"  \n", "no text to build"),
    ],
)
def test_bad_files_are_one_sentence_that_names_them(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        build_from_files(tmp_path / "store", [tmp_path / name], spelled, 256, "")


def test_missing_files_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere"):
        build_from_files(tmp_path / "store", [tmp_path / "nowhere.txt"], spelled, 256, "")
    with pytest.raises(ConfigError, match="name at least one"):
        build_from_files(tmp_path / "store", [], spelled, 256, "")
