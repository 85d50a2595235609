"""Who is placed on a cluster with which needs, what is refused there, and which keys each gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from actors.settings import AUTO_DRAFT, ControllerSettings, DrafterSettings, LearnerSettings, VerifierSettings
from duoactor.launch.child import GATEWAY
from duoactor.launch.issue_keys import issue_keys
from duoactor.launch.members import DRAFTER_RESOURCE, plan_members
from duoactor.launch.wanted import Wanted
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError
from protocols.messages import Role
from protocols.security import KeyRole, load_security, read_roles


def wanted(**changes) -> Wanted:
    settings = {
        "verifier": VerifierSettings(),
        "drafters": (DrafterSettings(),) * 3,
        "controller": ControllerSettings(),
    }
    return Wanted(**settings | changes)


def test_drafters_are_dealt_out_to_the_verifiers_and_each_verifier_has_a_controller():
    members = plan_members(wanted(gateway=GatewaySettings()), 2, has_gpus=False)
    assert [(one.role, one.name, one.verifiers) for one in members] == [
        (Role.VERIFIER, "verifier-1", (0,)),
        (Role.VERIFIER, "verifier-2", (1,)),
        (Role.CONTROLLER, "controller-1", (0,)),
        (Role.CONTROLLER, "controller-2", (1,)),
        (Role.DRAFTER, "drafter-1", (0,)),
        (Role.DRAFTER, "drafter-2", (1,)),
        (Role.DRAFTER, "drafter-3", (0,)),
        (GATEWAY, "gateway", (0, 1)),
    ]


@pytest.mark.parametrize(
    ("device", "has_gpus", "gpus"), [("auto", True, 1), ("auto", False, 0), ("cpu", True, 0), ("cuda", False, 1)]
)
def test_a_verifier_asks_for_a_gpu_where_it_would_use_one(device: str, has_gpus: bool, gpus: int):
    verifier, *_ = plan_members(wanted(verifier=VerifierSettings(device=device, threads=4)), 1, has_gpus=has_gpus)
    assert (verifier.cpus, verifier.gpus) == (4, gpus)


def test_a_drafter_asks_for_its_threads_and_a_place_on_a_node_for_drafters_unless_it_wants_a_gpu():
    drafters = (DrafterSettings(threads=2), DrafterSettings(device="cuda"))
    *_, small, large = plan_members(wanted(drafters=drafters), 1, has_gpus=True)
    assert small.needs == f"2 CPU, 1 {DRAFTER_RESOURCE}"
    assert large.needs == "1 CPU, 1 GPU"


@pytest.mark.parametrize(
    "changes",
    [
        {"verifier": VerifierSettings(bind="tcp://0.0.0.0:7601")},
        {"verifier": VerifierSettings(key="verifier.key")},
        {"drafters": (DrafterSettings(connect="tcp://box:7601"),)},
        {"controller": ControllerSettings(cpus="1")},
        {"gateway": GatewaySettings(server_key="verifier.pub")},
        {"learner": LearnerSettings()},
    ],
)
def test_what_a_cluster_cannot_honour_is_refused_by_name(changes):
    with pytest.raises(ConfigError, match="cluster"):
        plan_members(wanted(**changes), 1, has_gpus=False)


def test_a_directory_is_named_so_that_another_process_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "target").mkdir()
    monkeypatch.chdir(tmp_path)
    verifier, *_ = plan_members(wanted(verifier=VerifierSettings(target="target")), 1, has_gpus=False)
    assert verifier.settings.target == str(tmp_path / "target")
    verifier, *_ = plan_members(wanted(verifier=VerifierSettings(target="Qwen/Qwen3-8B")), 1, has_gpus=False)
    assert verifier.settings.target == "Qwen/Qwen3-8B"


def test_the_targets_own_head_is_drafted_with_by_the_verifiers_themselves():
    drafters = (DrafterSettings(draft=AUTO_DRAFT), DrafterSettings(), DrafterSettings(draft=AUTO_DRAFT, target="t"))
    members = plan_members(wanted(drafters=drafters), 2, has_gpus=False)
    assert [one.settings.inline_draft for one in members if one.role is Role.VERIFIER] == [AUTO_DRAFT] * 2
    found = [one.settings for one in members if one.role is Role.DRAFTER]
    assert [(one.actor_id, one.target) for one in found] == [("drafter-1", ""), ("drafter-2", "t")]


def test_every_model_of_an_actor_is_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here.gguf").touch()
    monkeypatch.chdir(tmp_path)
    verifier = VerifierSettings(target="here.gguf", tokenizer="here", inline_draft="here", datastore="here")
    drafter = DrafterSettings(draft="here", target="here.gguf")
    found = plan_members(wanted(verifier=verifier, drafters=(drafter,)), 1, has_gpus=False)
    named = [getattr(found[0].settings, name) for name in ("target", "tokenizer", "inline_draft", "datastore")]
    named += [found[-1].settings.draft, found[-1].settings.target]
    place = str(tmp_path / "here")
    assert named == [f"{place}.gguf", place, place, place, place, f"{place}.gguf"]


def test_each_role_has_a_key_that_the_verifier_admits_for_it_alone(tmp_path: Path):
    issued = issue_keys()
    for role, files in issued.items():
        (tmp_path / role).mkdir()
        files.write(str(tmp_path / role))
    at = tmp_path / "verifier"
    verifier = load_security(at / "verifier.key", allow_dir=at)
    for role in (KeyRole.DRAFTER, KeyRole.CONTROLLER, KeyRole.OPERATOR):
        own = load_security(tmp_path / role / f"{role}.key", tmp_path / role / "verifier.pub")
        assert own.server_key == verifier.public_key
        assert verifier.holder(own.public_key).roles == read_roles(at / f"{role}.pub") == {role}


def test_keys_are_neither_shown_nor_readable_for_others(tmp_path: Path):
    files = issue_keys()["drafter"]
    assert repr(files) == "KeyFiles(drafter.key, verifier.pub)"
    files.write(str(tmp_path))
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
