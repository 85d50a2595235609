"""``duoactor demo`` from end to end, with small programs in place of the actors and made-up streams."""

from __future__ import annotations

import json

import pytest

from duoactor.cli import main
from duoactor.cli.demo import REAL
from duoactor.cli.environment import Environment
from protocols.errors import ModelError
from tests.cli.fake_actors import FakeClient, fake_world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeClient, Environment]:
    monkeypatch.setattr("duoactor.cli.demo.located", out_of_reach)
    return fake_world(monkeypatch)


def out_of_reach(name: str) -> str:
    raise ModelError(name)


def test_a_small_real_model_is_shown_where_it_can_be_had(world, monkeypatch, capsys):
    _, environment = world
    asked: list[str] = []
    monkeypatch.setattr("duoactor.cli.demo.located", asked.append)
    assert main(["demo", "--json", "--no-reference", "--repeats", "1"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["prompts"] == 3 and asked == [REAL]


def test_the_demo_in_json_is_the_benchmarks_document(world, capsys):
    _, environment = world
    assert main(["demo", "--json", "--no-reference", "--repeats", "1"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in document["table"]] == ["vanilla", "auto"]
    assert all(line["cells"]["average"]["tokens_per_second"] > 0 for line in document["table"])
    assert document["settings"]["prompts"] == 5 and document["table"][1]["compared"] == 5
    assert "runs" not in document and document["machine"]["cpus"] >= 1


def test_the_demo_shows_text_and_a_table(world, capsys):
    client, environment = world
    assert main(["demo", "--no-reference", "--repeats", "1", "--prompt", "Say hello"], environment) == 0
    out, err = capsys.readouterr()
    assert "\n\n> Say hello\nHello world …\n\n" in out
    assert out.startswith("bundled target and bundled draft: small models")
    assert "auto (ours)" in out and "All 1 compared texts are identical to vanilla's." in out
    assert "\x1b" not in out and "no hub can be reached: toy models instead" in err
    assert [method for method, *_ in client.asked] == [
        "auto",
        "vanilla",
        "auto",
        "vanilla",
        "auto",
    ]  # shown; warm; timed


def test_a_text_that_differs_is_exit_code_1(world, capsys):
    client, environment = world
    client.wrong = "sps"
    assert main(["demo", "--json", "--no-reference", "--repeats", "1", "--method", "sps"], environment) == 1
    assert json.loads(capsys.readouterr().out)["table"][1]["different"] == 5
