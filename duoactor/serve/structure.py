"""The form of an answer: ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from duoactor.serve.closed_schemas import closed
from duoactor.serve.errors import ApiError, bad
from duoactor.serve.parameters import SamplingParameters, no_json
from protocols.messages import StructuredOutputs

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``strict`` or not, the answer follows the schema."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: Any = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As the chat API has it; ``schema`` is llama.cpp's way to give one."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's: exactly one of them."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructureParameters(SamplingParameters, frozen=True, kw_only=True):
    """The forms of chat and text completions: OpenAI's parameter and vLLM's."""

    response_format: ResponseFormat = ResponseFormat()
    structured_outputs: Structure | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """``param`` is the parameter that asked for it; ``schema`` is the JSON schema, where it is one."""

    outputs: StructuredOutputs
    param: str
    schema: Mapping[str, Any] | None = None


def json_shape(schema: Mapping[str, Any], param: str) -> AnswerForm:
    schema = closed(dict(schema))
    return AnswerForm(StructuredOutputs(json_schema=json.dumps(schema, ensure_ascii=False)), param, schema)


def shape_of(wanted: StructureParameters) -> AnswerForm | None:
    """The form of the answer; None: any. ApiError (400) if more than one form is asked for, or an impossible one."""
    forms = _formats(wanted.response_format)
    if wanted.structured_outputs is not None:
        given = _vllm(wanted.structured_outputs)
        if len(given) != 1:
            raise bad("structured_outputs", "takes exactly one of json, regex, choice, grammar and json_object")
        forms += given
    if len(forms) > 1:
        both = f"{forms[1].param} and {forms[0].param}"
        raise ApiError(400, f"{both} are given; an answer can follow one of them", param=forms[1].param)
    return forms[0] if forms else None


def _formats(wanted: ResponseFormat) -> list[AnswerForm]:
    given = wanted.json_schema
    if wanted.type != "text" and given is None and wanted.schema is not None:
        return [json_shape(wanted.schema, "response_format.schema")]
    found = shape_in(wanted.type, None if given is None else given.schema, "response_format", ".json_schema")
    return [] if found is None else [found]


def shape_in(kind: str, schema: Mapping[str, Any] | None, place: str, where: str = ".schema") -> AnswerForm | None:
    """The form for a type; ``where``: the field with the schema, below ``place``."""
    if kind == "text":
        return None
    if kind == "json_object":
        return json_shape(ANY_OBJECT, place)
    if schema is None:
        raise bad(f"{place}{where}", "is missing: it holds the schema")
    return json_shape(schema, f"{place}{where}" if where == ".schema" else f"{place}{where}.schema")


def _vllm(given: Structure) -> list[AnswerForm]:
    prefix, forms = "structured_outputs.", []
    if given.json is not None:
        forms.append(json_shape(_schema(given.json, f"{prefix}json"), f"{prefix}json"))
    if given.json_object:
        forms.append(json_shape(ANY_OBJECT, f"{prefix}json_object"))
    if given.regex is not None:
        forms.append(AnswerForm(StructuredOutputs(regex=given.regex), f"{prefix}regex"))
    if given.choice is not None:
        if not given.choice or "" in given.choice:
            raise bad(f"{prefix}choice", "must name texts to choose from")
        choice = " | ".join(json.dumps(text) for text in given.choice)
        forms.append(AnswerForm(StructuredOutputs(grammar=f"start: {choice}"), f"{prefix}choice"))
    if given.grammar is not None:
        forms.append(AnswerForm(StructuredOutputs(grammar=given.grammar), f"{prefix}grammar"))
    return forms


def _schema(given: str | dict[str, Any], param: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    try:
        found = msgspec.json.decode(given)
    except msgspec.MsgspecError as error:
        raise bad(param, no_json(given.encode(), error)) from None
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise bad(param, "must be a JSON schema, as an object or as its text")
    return found
