"""Model types that are other names of a described class of transformers."""

from __future__ import annotations

import pytest
from transformers import InternLM3Config, IQuestCoderConfig, LlamaConfig, Qwen2Config

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.families import FAMILIES
from actors.engines.weights.kept_config import KeptConfig
from tests.engines import families
from tests.engines.tiny import COMMON


@pytest.mark.parametrize("config", [InternLM3Config, IQuestCoderConfig])
def test_a_name_of_a_class_is_described_as_that_class_and_kept_for_the_next_start(config):
    named, own = config(**COMMON, head_dim=16), LlamaConfig(**COMMON, head_dim=16)
    assert named.model_type not in FAMILIES
    named.rms_norm_eps = own.rms_norm_eps
    named.rope_parameters = own.rope_parameters
    spec = spec_of(named)
    assert spec is not None and spec == spec_of(own)
    assert spec_of(KeptConfig.of(named).config()) == spec


def test_a_type_that_transformers_does_not_compute_is_none_of_a_family():
    config = Qwen2Config(**COMMON)
    config.model_type = "no such type"
    assert spec_of(config) is None


@pytest.mark.parametrize("name", [*families.FAMILIES, *families.VARIANTS])
def test_what_is_kept_of_a_configuration_describes_the_same_model(name):
    config = families.config_of(name)
    kept = KeptConfig.of(config)
    assert not kept.own or spec_of(kept.config()) == spec_of(config)
