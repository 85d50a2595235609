"""API keys reach the gateway that is started for them, and no command line."""

import pytest

from actors.settings import VerifierSettings
from duoactor.launch.child import GATEWAY, environment_of
from duoactor.launch.deployment import deploy, flags
from duoactor.launch.wanted import Wanted
from duoactor.serve.auth import read_keys
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError

KEYS = ("#first-secret", "second-secret")


def test_keys_go_to_the_gateway_by_its_environment_alone(tmp_path, monkeypatch):
    verifier = VerifierSettings(bind=f"ipc://{tmp_path}/v.ipc")
    wanted = Wanted(verifier, (), gateway=GatewaySettings(http="127.0.0.1:8000", api_key=KEYS))
    plans = deploy(wanted, cpus=(0, 1)).plans
    assert not [plan.name for plan in plans if any("secret" in word for word in plan.command)]
    assert not [plan.name for plan in plans if "secret" in repr(plan)]
    told = {plan.role: environment_of(plan).get("DUOACTOR_API_KEYS") for plan in plans}
    assert [role for role, keys in told.items() if keys] == [GATEWAY]
    monkeypatch.setenv("DUOACTOR_API_KEYS", told[GATEWAY])
    assert read_keys(GatewaySettings()) == KEYS


def test_keys_of_the_environment_are_checked_like_others(monkeypatch):
    monkeypatch.setenv("DUOACTOR_API_KEYS", "a key")
    with pytest.raises(ConfigError, match="API key 1 holds a space"):
        read_keys(GatewaySettings())
    assert not [flag for flag in flags(GatewaySettings(api_key=("k",))) if "api" in flag]
