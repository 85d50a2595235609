"""``duoactor up --launcher``: what is said where it cannot be."""

from __future__ import annotations

import sys

import duoactor
from duoactor.cli import main
from protocols.extras import install


def test_a_missing_ray_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "duoactor.ray", raising=False)
    monkeypatch.delattr(duoactor, "ray", raising=False)  # an earlier test may have imported it
    assert main(["up", "--launcher", "ray"]) == 1
    assert capsys.readouterr().err == f"duoactor: Ray is not installed: {install('ray')}\n"


def test_several_verifiers_want_a_cluster(capsys):
    assert main(["up", "--verifiers", "2"]) == 2
    assert "--launcher ray" in capsys.readouterr().err
