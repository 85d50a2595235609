"""A learner's key names directories that drafters load: only those that a learner of this user has made."""

import pytest

from actors.generations import promoted
from protocols.errors import ModelError


def test_weights_that_a_learner_has_written_are_loaded(tmp_path):
    (tmp_path / "versions.json").write_text("{}")
    (tmp_path / "version-1").mkdir()
    assert promoted(str(tmp_path / "version-1")) == str(tmp_path / "version-1")


@pytest.mark.parametrize("path", ["org/model", "version-1", "/etc", "/nowhere/version-1"])
def test_neither_a_hub_id_nor_any_other_directory_is_loaded(path):
    with pytest.raises(ModelError, match="learner of this user"):
        promoted(path)
