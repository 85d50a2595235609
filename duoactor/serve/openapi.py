"""``/openapi.json``: the API's description, made from the structs that bodies are decoded into."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from duoactor.serve import tokens
from duoactor.serve.anthropic import messages
from duoactor.serve.llama import requests as llama
from duoactor.serve.llama.answers import WholeCompletion
from duoactor.serve.ollama import answers
from duoactor.serve.ollama import models as cards
from duoactor.serve.ollama import requests as ollama
from duoactor.serve.openai import chat, completions, responses
from duoactor.serve.openai.envelope import Envelope

_BODIES: dict[str, tuple[str, Any, Any]] = {
    "/v1/chat/completions": ("Answer a conversation", chat.ChatRequest, Envelope[chat.ChatChoice]),
    "/v1/completions": ("Continue a prompt", completions.CompletionRequest, Envelope[completions.CompletionChoice]),
    "/v1/responses": ("Answer, as OpenAI's Responses API", responses.ResponsesRequest, responses.Response),
    "/v1/responses/input_tokens": ("Count tokens", responses.ResponsesRequest, responses.InputTokens),
    "/v1/messages": ("Answer, as Anthropic's API", messages.MessagesRequest, messages.MessageAnswer),
    "/v1/messages/count_tokens": ("Count tokens, as Anthropic's API", messages.CountRequest, dict[str, int]),
    "/api/chat": ("Answer a conversation, as Ollama's API", ollama.OllamaChat, answers.ChatLine),
    "/api/generate": ("Answer a prompt, as Ollama's API", ollama.OllamaGenerate, answers.GenerateLine),
    "/api/show": ("The model, as Ollama's API", cards.ShowRequest, cards.ModelCard),
    "/completion": ("Continue a prompt, as llama-server", llama.LlamaCompletion, WholeCompletion),
    "/completions": ("The same", llama.LlamaCompletion, WholeCompletion),
    "/infill": ("Fill a gap, as llama-server", llama.Infill, WholeCompletion),
    "/apply-template": ("A conversation as text", tokens.TemplateRequest, tokens.TemplateAnswer),
    "/tokenize": ("The tokens of a text", tokens.TokenizeRequest, tokens.TokenizeAnswer),
    "/detokenize": ("The text of tokens", tokens.DetokenizeRequest, tokens.DetokenizeAnswer),
}
_QUESTIONS = {
    "/v1/models": "The models that are served",
    "/v1/models/": "The same",
    "/v1/models/{name}": "One of them",
    "/api/tags": "The models, as Ollama's API",
    "/api/ps": "The model that is loaded, as Ollama's API",
    "/api/version": "The version of Ollama's API",
    "/tokenizer_info": "The tokenizer's configuration",
    "/props": "The server, as llama-server",
    "/slots": "The open requests, as llama-server",
    "/v1/health": "Does the verifier answer?",
    "/health": "Does the verifier answer?",
    "/ping": "The same",
    "/version": "The version of duoactor",
    "/metrics": "For Prometheus",
}


# The same for base URLs without /v1
_SHORT = ("/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens")
_BODIES |= {path.removeprefix("/v1"): _BODIES[path] for path in _SHORT}
_QUESTIONS["/models"] = _QUESTIONS["/v1/models"]


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
    for path, summary in _QUESTIONS.items():
        content: dict[str, Any] = {"text/plain" if path == "/metrics" else "application/json": {"schema": {}}}
        paths[path] = {"get": {"summary": summary, "responses": _answers(content)}}
    for path in ("/v1/responses/{ident}", "/responses/{ident}"):
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Response"}}}
        paths[path] = {
            "get": {"summary": "A response that is kept", "responses": _answers(content)},
            "delete": {"summary": "Keep it no longer", "responses": _answers({"application/json": {"schema": {}}})},
        }
        paths[f"{path}/input_items"] = {
            "get": {"summary": "What it answers", "responses": _answers({"application/json": {"schema": {}}})}
        }
    for path, methods in paths.items():
        for name in re.findall(r"{(\w+)}", path):
            named = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for method in methods.values():
                method["parameters"] = [named]
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
    if "stream" not in asked.__struct_fields__:
        return {}
    kind = "application/x-ndjson" if issubclass(asked, ollama.OllamaParameters) else "text/event-stream"
    return {kind: {"schema": {"type": "string"}}}


def _answers(content: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "an error, whose message says what to do", "content": {"application/json": {"schema": {}}}}
    return {"200": {"description": "the answer", "content": content}, "default": error}
