"""A configuration as an earlier start has kept it: transformers takes two seconds to import and to read its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from actors.engines.decoder.configuration import spec_of

_FLOAT = "__float__"  # key of floats, as transformers writes them


class PlainConfig(SimpleNamespace):
    """The fields of a ``transformers`` configuration, without its class."""

    def __init__(self, values: dict[str, Any], text: PlainConfig | None = None) -> None:
        kind = values.get("dtype")
        super().__init__(**_read(values) | {"dtype": getattr(torch, kind) if isinstance(kind, str) else kind})
        self._text = text or self

    def get_text_config(self) -> PlainConfig:
        return self._text


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """What a :class:`PlainConfig` is made of; without ``own`` the fused decoder does not run the model."""

    own: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] | None = None  # configuration of the text part of a model with eyes

    @classmethod
    def of(cls, config: Any) -> KeptConfig:
        text = config.get_text_config()
        made = cls(_values(config), None if text is config else _values(text))
        spec = spec_of(config)
        try:
            plain = msgspec.json.decode(msgspec.json.encode(made), type=cls).config()
        except TypeError:  # a field that is no JSON
            return cls()
        return made if spec is not None and spec_of(plain) == spec else cls()

    def config(self) -> PlainConfig:
        return PlainConfig(self.own, None if self.text is None else PlainConfig(self.text))


def _values(config: Any) -> dict[str, Any]:
    """All fields, by their other names too, and the kinds of layers, which some classes make of other fields."""
    values: dict[str, Any] = config.to_dict()
    more = {name: getattr(config, name) for name in ("layer_types", *config.attribute_map) if hasattr(config, name)}
    kept: dict[str, Any] = _written(more | values)
    return kept


def _written(value: Any) -> Any:
    """With a word for infinities, for which JSON has none."""
    match value:
        case float() if math.isinf(value):
            return {_FLOAT: str(value)}
        case dict():
            return {key: _written(one) for key, one in value.items()}
        case list() | tuple():
            return [_written(one) for one in value]
    return value


def _read(value: Any) -> Any:
    """The opposite."""
    match value:
        case dict() if _FLOAT in value:
            return float(value[_FLOAT])
        case dict():
            return {key: _read(one) for key, one in value.items()}
        case list():
            return [_read(one) for one in value]
    return value
