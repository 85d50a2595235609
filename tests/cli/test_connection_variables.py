"""DUOACTOR_CONNECT, DUOACTOR_KEY and DUOACTOR_SERVER_KEY mean the same to every command and to the client."""

import pytest

from duoactor import AsyncClient
from duoactor.cli import main
from duoactor.launch.child import ActorPlan, environment_of
from protocols.address import default_address
from protocols.messages import Role

SAID = {"DUOACTOR_CONNECT": "tcp://box:7601", "DUOACTOR_KEY": "my.key", "DUOACTOR_SERVER_KEY": "box.pub"}
ACTORS = {
    "drafter": "actors.drafter.start.run_drafter",
    "controller": "actors.controller.start.run_controller",
    "serve": "duoactor.serve.start.run_gateway",
}


@pytest.fixture
def said(monkeypatch):
    for name, value in SAID.items():
        monkeypatch.setenv(name, value)


def settings_of(monkeypatch, command: str, *flags: str):
    seen = []
    monkeypatch.setattr(ACTORS[command], lambda settings: seen.append(settings) or 0)
    assert main([command, *flags]) == 0
    (settings,) = seen
    return settings


@pytest.mark.parametrize("command", ACTORS)
def test_an_actor_connects_where_the_environment_says(said, monkeypatch, command):
    settings = settings_of(monkeypatch, command)
    assert "tcp://box:7601" in settings.connect
    assert (settings.key, settings.server_key) == ("my.key", "box.pub")


@pytest.mark.parametrize("command", ACTORS)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(said, monkeypatch, command, tmp_path):
    section = "gateway" if command == "serve" else command
    file = tmp_path / "duo.toml"
    file.write_text(f'[{section}]\nkey = "file.key"\nserver_key = "file.pub"\n')
    settings = settings_of(monkeypatch, command, "--config", str(file), "--server-key", "flag.pub")
    assert (settings.key, settings.server_key) == ("my.key", "flag.pub")


def _keys(client: AsyncClient) -> tuple[str, str]:
    return client._options["key"], client._options["server_key"]


def test_a_client_without_an_address_reads_the_environment(said):
    client = AsyncClient()
    assert (client.address, _keys(client)) == ("tcp://box:7601", ("my.key", "box.pub"))
    assert _keys(AsyncClient(key="other.key")) == ("other.key", "box.pub")


def test_a_client_with_an_address_of_its_own_reads_nothing(said):
    client = AsyncClient("ipc:///run/x.sock")
    assert (client.address, _keys(client)) == ("ipc:///run/x.sock", ("", ""))


def test_without_variables_it_is_the_users_own_verifier(monkeypatch):
    for name in SAID:
        monkeypatch.delenv(name, raising=False)
    assert AsyncClient().address == default_address()


def test_what_is_meant_for_clients_does_not_reach_the_actors_that_up_starts(said):
    assert not SAID.keys() & environment_of(ActorPlan(Role.DRAFTER, "d", ("x",))).keys()
