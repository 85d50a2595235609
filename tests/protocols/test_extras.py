"""How to add an extra, by how the package was installed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocols.extras import install


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("editable", [True, False])
def test_an_extra_of_a_checkout_is_held_to_its_constraints(
    constrained: bool, editable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    origin = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": editable}})
    installed = SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr("protocols.extras.distribution", lambda name: installed)
    if constrained:
        (tmp_path / "constraints.txt").touch()
    words = [*(["-c", f"'{tmp_path}/constraints.txt'"] if constrained else []), *(["-e"] if editable else [])]
    assert install("serve") == " ".join(["pip install", *words, f"'{tmp_path}[serve]'"])


def test_an_extra_of_a_package_from_an_index_has_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.extras.distribution", lambda name: SimpleNamespace(read_text=lambda name: None))
    assert install("serve") == "pip install 'duoactor[serve]'"
