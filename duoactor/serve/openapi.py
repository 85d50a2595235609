"""``/openapi.json``: the API's description, made from the structs that bodies are decoded into."""

from __future__ import annotations

from typing import Any

import msgspec

from duoactor.serve import tokens
from duoactor.serve.anthropic import messages
from duoactor.serve.openai import chat, completions, responses
from duoactor.serve.openai.envelope import Envelope

_BODIES: dict[str, tuple[str, Any, Any]] = {
    "/v1/chat/completions": ("Answer a conversation", chat.ChatRequest, Envelope[chat.ChatChoice]),
    "/v1/completions": ("Continue a prompt", completions.CompletionRequest, Envelope[completions.CompletionChoice]),
    "/v1/responses": ("Answer, as OpenAI's Responses API", responses.ResponsesRequest, responses.Response),
    "/v1/messages": ("Answer, as Anthropic's API", messages.MessagesRequest, messages.MessageAnswer),
    "/v1/messages/count_tokens": ("Count tokens, as Anthropic's API", messages.CountRequest, dict[str, int]),
    "/tokenize": ("The tokens of a text", tokens.TokenizeRequest, tokens.TokenizeAnswer),
    "/detokenize": ("The text of tokens", tokens.DetokenizeRequest, tokens.DetokenizeAnswer),
}
_REFUSALS = {
    400: "a parameter has no such value, or is not supported; the error names it",
    401: "no key that is known here",
    404: "no such model",
    408: "the body did not arrive",
    413: "the body is too large",
    415: "the body is not sent as JSON",
    429: "too many requests are open: try again later",
    500: "a fault of ours",
    504: "not complete at its deadline_ms",
    503: "no verifier answers, or the gateway is shutting down: try again later",
}


def describe(version: str) -> dict[str, Any]:
    kinds = [kind for _, asked, answered in _BODIES.values() for kind in (asked, answered)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    made = iter(schemas)
    paths: dict[str, Any] = {
        path: {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": {"schema": next(made)}}},
                "responses": _answers({"application/json": {"schema": next(made)}, **_streamed(asked)}),
            }
        }
        for path, (summary, asked, _) in _BODIES.items()
    }
    anything = {"application/json": {"schema": {"type": "object"}}}
    paths["/v1/models"] = {"get": {"summary": "The models that are served", "responses": _answers(anything)}}
    paths["/v1/models/"] = paths["/v1/models"]
    named = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"] = {
        "get": {"summary": "One of them", "parameters": [named], "responses": _answers(anything)}
    }
    paths["/tokenizer_info"] = {"get": {"summary": "The tokenizer's configuration", "responses": _answers(anything)}}
    paths["/health"] = {"get": {"summary": "Does the verifier answer?", "responses": _answers(anything)}}
    paths["/ping"] = paths["/health"]
    paths["/version"] = {"get": {"summary": "The version of duoactor", "responses": _answers(anything)}}
    paths["/metrics"] = {
        "get": {"summary": "For Prometheus", "responses": _answers({"text/plain": {"schema": {"type": "string"}}})}
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duoactor",
            "version": version,
            "description": "The live page at / and what it alone calls, /live/…, are no part of the API.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _streamed(asked: type[msgspec.Struct]) -> dict[str, Any]:
    return {"text/event-stream": {"schema": {"type": "string"}}} if "stream" in asked.__struct_fields__ else {}


def _answers(content: dict[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"type": "object"}}}
    refusals = {str(status): {"description": text, "content": error} for status, text in _REFUSALS.items()}
    return {"200": {"description": "the answer", "content": content}, **refusals}
