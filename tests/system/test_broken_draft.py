"""``duoactor up`` with a draft whose weights are no numbers: the target serves, and a sentence names the draft."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.settings import BUNDLED
from duoactor import Client
from duoactor.config import resolve_model
from tests.world.processes import Up, run


@pytest.fixture
def broken(tmp_path) -> Path:
    """The bundled draft with one number changed."""
    directory = tmp_path / "broken"
    shutil.copytree(resolve_model(BUNDLED, "draft"), directory)
    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"][0] = torch.tensor(math.nan)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("option", ["--draft", "--inline-draft"])
def test_a_broken_draft_is_left_out_and_named(option, broken, tmp_path):
    up = Up(tmp_path, option, str(broken), *(["--draft", "pld"] if option == "--inline-draft" else []))
    try:
        assert up.document["target"]
        with Client(up.address) as client:
            assert len(client.generate("Once upon a time", max_tokens=8, ignore_eos=True).token_ids) == 8
            report = client.status()
    finally:
        up.stop()
    assert [one.model_id for one in report.drafters] == ([] if option == "--draft" else ["pld"])
    assert report.left_out.startswith(
        f"no drafts between forwards: model.norm.weight in {broken}/model.safetensors holds NaN"
    )
    said = (tmp_path / "up.log").read_text()
    assert said.count(f"model.norm.weight in {broken}/model.safetensors holds NaN") == 1
    assert "Traceback" not in said


def test_a_command_that_measures_drafts_ends_with_the_sentence(broken):
    ended = run("bench", "--target", "bundled", "--draft", str(broken), "--limit", "1")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        f"duoactor: drafter: model.norm.weight in {broken}/model.safetensors holds NaN or infinity: "
    )
