"""A configuration as an earlier start has kept it: transformers takes two seconds to import and to read its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from actors.engines.decoder.configuration import spec_of


class PlainConfig(SimpleNamespace):
    """The fields of a ``transformers`` configuration, without its class."""

    def __init__(self, values: dict[str, Any], text: PlainConfig | None = None) -> None:
        kind = values.get("dtype")
        super().__init__(**values | {"dtype": getattr(torch, kind) if isinstance(kind, str) else kind})
        self._text = text or self

    def get_text_config(self) -> PlainConfig:
        return self._text


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """What a :class:`PlainConfig` is made of, in JSON; without ``own`` the fused decoder does not run the model."""

    own: str = ""
    text: str = ""  # configuration of the text part of a model with eyes

    @classmethod
    def of(cls, config: Any) -> KeptConfig:
        text = config.get_text_config()
        try:
            made = cls(_fields(config), "" if text is config else _fields(text))
        except TypeError:  # a field that is no JSON
            return cls()
        spec = spec_of(config)
        return made if spec is not None and spec_of(made.config()) == spec else cls()

    def config(self) -> PlainConfig:
        return PlainConfig(json.loads(self.own), PlainConfig(json.loads(self.text)) if self.text else None)


def _fields(config: Any) -> str:
    """All fields, by their other names too, and the kinds of layers, which some classes make of other fields."""
    more = {name: getattr(config, name) for name in ("layer_types", *config.attribute_map) if hasattr(config, name)}
    return json.dumps(more | config.to_dict())
