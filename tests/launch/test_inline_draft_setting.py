"""Under ``up`` the verifier is told what it may draft with itself."""

import pytest

from actors.settings import DrafterSettings, LearnerSettings, VerifierSettings
from duoactor.config import resolve_model
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import Wanted
from protocols.errors import ModelError

BUNDLED = resolve_model("bundled", "draft")


def told(*drafters: DrafterSettings, **verifier) -> str:
    settings = VerifierSettings(bind="ipc:///tmp/v", **verifier)
    return deploy(Wanted(settings, drafters), cpus=(0, 1)).verifier.inline_draft


def test_it_is_the_first_drafters_model():
    assert told(DrafterSettings()) == BUNDLED
    assert told(DrafterSettings(draft="pld"), DrafterSettings(draft="some/model")) == "some/model"


def test_another_may_be_named_or_none():
    assert told(DrafterSettings(), inline_draft="some/model") == "some/model"
    assert told(DrafterSettings(), inline_draft="none") == "none"
    assert told(inline_draft="bundled") == BUNDLED


@pytest.mark.parametrize("name", ["pld", "sam", "rest:DIR"])
def test_what_looks_text_up_is_no_model_to_draft_with(name):
    with pytest.raises(ModelError, match=f"{name} is no draft model, and method auto looks text up by itself"):
        told(inline_draft=name)


@pytest.mark.parametrize("drafters", [(), (DrafterSettings(draft="pld"),), (DrafterSettings(device="cuda"),)])
def test_it_is_none_where_no_drafter_has_a_model_on_a_cpu(drafters):
    assert told(*drafters) == ""


def test_a_draft_on_a_gpu_leaves_the_cpus_to_the_target_but_for_one_to_launch_from():
    settings = VerifierSettings(bind="ipc:///tmp/v", device="cpu")
    made = deploy(Wanted(settings, (DrafterSettings(device="cuda"),)), cpus=(0, 1, 2, 3))
    assert (made.verifier.cpus, made.verifier.threads, made.verifier.inline_draft) == ("0,1,2", 3, "")
    assert (made.drafters[0].device, made.drafters[0].cpus) == ("cuda", "3")


def test_with_a_learner_it_is_the_same_and_so_are_the_cpus_that_drafters_lend():
    both = (VerifierSettings(bind="ipc:///tmp/v"), (DrafterSettings(),))
    alone, taught = (deploy(Wanted(*both, learner=one), cpus=(0, 1)) for one in (None, LearnerSettings()))
    assert taught.verifier == alone.verifier
    assert taught.verifier.inline_draft and taught.verifier.spare_cpus
