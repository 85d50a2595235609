"""The routes: which function answers which path, and how an error becomes an answer."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duoactor import __version__
from duoactor.client.async_client import AsyncClient
from duoactor.serve import tokens
from duoactor.serve.answers import Answer, card, listing, new_id
from duoactor.serve.anthropic import messages
from duoactor.serve.api_names import in_words_of
from duoactor.serve.auth import KeyGuard, cache_salt, check_operates
from duoactor.serve.bodies import read_body
from duoactor.serve.errors import ApiError, answered, bad
from duoactor.serve.fields import Ignored
from duoactor.serve.fill import filled
from duoactor.serve.gateway import Choices, Gateway, Model, leaving
from duoactor.serve.live import Live
from duoactor.serve.llama import requests as llama
from duoactor.serve.llama import server
from duoactor.serve.llama.answers import LlamaAnswer
from duoactor.serve.ollama import models
from duoactor.serve.ollama import requests as ollama
from duoactor.serve.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from duoactor.serve.openai import chat, completions, responses
from duoactor.serve.openai.items import items, page
from duoactor.serve.openai.kept import Keeping, Kept
from duoactor.serve.openapi import describe
from duoactor.serve.parameters import WHOLE_PROMPT, countable, decode
from duoactor.serve.question import Question
from duoactor.serve.stream import ClientGone, EventStream, unless_gone
from duoactor.serve.tool_calls.events import NoTools, Parser
from protocols.errors import ConfigError
from protocols.messages import Chunk, StatusReport


class Parameters(Protocol):
    """A request's parameters, of any API."""

    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool: ...


P = TypeVar("P", bound=Parameters)
log = logging.getLogger("duoactor.serve")
WARNING = "x-duoactor-warning"
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")  # a page's origin as a browser names it
_NO_EMBEDDINGS = "a model that writes text has no embeddings of it: ask a server of an embedding model"
_NO_RANKS = "a model that writes text ranks none: ask a server of a reranking model"
_NO_SHOP = "models are neither pulled nor made by requests: start `duoactor up MODEL` with another"
_NO_CANCEL = "nothing is made in the background here: to end an answer, close the connection that it comes by"
_NO_COMPACTION = "conversations are not compacted here: ask the model for a summary, and go on from that"
# Paths of other servers, and what to do about each
ELSEWHERE = {
    r"/embeddings?|/api/embed(dings)?": _NO_EMBEDDINGS,
    r"/rerank(ing)?|/score": _NO_RANKS,
    r"/api/(pull|push|create|copy|delete|blobs/.*)": _NO_SHOP,
    r"/responses/[^/]*/cancel": _NO_CANCEL,
    r"/responses/compact": _NO_COMPACTION,
}
# What writes text, by path: how a request is parsed, its answer's class, and the operation as the semantic conventions
# for generative AI call it. The base URL may end in /v1 or not.
TEXT: Mapping[str, tuple[Any, Any, str]] = {
    "/v1/chat/completions": (chat.parse, chat.ChatAnswer, "chat"),
    "/chat/completions": (chat.parse, chat.ChatAnswer, "chat"),
    "/v1/completions": (completions.parse, completions.CompletionAnswer, "text_completion"),
    "/v1/messages": (messages.parse, messages.MessagesAnswer, "chat"),
    "/completion": (llama.parse_completion, LlamaAnswer, "text_completion"),
    "/completions": (llama.parse_completion, LlamaAnswer, "text_completion"),
    "/infill": (llama.parse_infill, LlamaAnswer, "text_completion"),
    "/api/chat": (ollama.parse_chat, OllamaChatAnswer, "chat"),
    "/api/generate": (ollama.parse_generate, OllamaGenerateAnswer, "text_completion"),
}
RESPONSES = ("/v1/responses", "/responses")
GENERATING = frozenset({*TEXT, *RESPONSES})  # with several models, these paths load the named model


def make_app(
    gateway: Gateway, *, keys: Sequence[str] = (), origins: Sequence[str] = (), share_caches: bool = False
) -> Starlette:
    """The ASGI app. ``keys``: a request must carry one; ``origins``: web pages from there may call; ``share_caches``:
    what one key asked speeds up another."""
    routes, route = Routes(gateway), partial(Route, methods=["POST"])
    middleware = [Middleware(Farewell, gateway)]
    if keys:
        middleware.append(Middleware(KeyGuard, keys=keys, share_caches=share_caches))
    if origins:
        middleware.insert(0, Middleware(open_to, origins))
    return Starlette(
        routes=[
            *(route(path, partial(routes.answer, *how)) for path, how in TEXT.items()),
            *(route(path, routes.responses) for path in RESPONSES),
            *(route(f"{path}/input_tokens", routes.input_tokens) for path in RESPONSES),
            *(Route(f"{path}/{{ident}}", routes.response, methods=["GET", "DELETE"]) for path in RESPONSES),
            *(Route(f"{path}/{{ident}}/input_items", routes.input_items) for path in RESPONSES),
            route("/v1/messages/count_tokens", routes.count_tokens),
            route("/tokenize", partial(routes.computed, tokens.tokenize)),
            route("/detokenize", partial(routes.computed, tokens.detokenize)),
            Route("/tokenizer_info", routes.tokenizer_info),
            *(Route(path, routes.models) for path in ("/v1/models", "/v1/models/", "/models")),
            Route("/v1/models/{name:path}", routes.model),
            route("/apply-template", partial(routes.computed, tokens.apply_template)),
            Route("/props", routes.props),
            Route("/slots", routes.slots),
            Route("/api/tags", partial(routes.described, models.tags)),
            Route("/api/ps", partial(routes.described, models.running)),
            route("/api/show", routes.show),
            Route("/api/version", partial(routes.version, models.SPOKEN)),
            Route("/health", routes.health),
            Route("/v1/health", routes.health),
            Route("/ping", routes.health, methods=["GET", "POST"]),
            Route("/version", partial(routes.version, __version__)),
            Route("/metrics", routes.metrics),
            Route("/openapi.json", routes.openapi),
            *Live(gateway, bool(keys), origins).routes(),
        ],
        middleware=middleware,
        exception_handlers={
            ApiError: refused,
            HTTPException: _not_routed,
            ClientGone: _gone,
            ClientDisconnect: _gone,
            Exception: _broken,
        },
    )


def open_to(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """An app that web pages of ``origins`` may call. ConfigError for what no browser calls an origin."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise ConfigError(f"{origin!r} is no web origin: give --cors-origin one such as https://app.example, or *")
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])


class Routes:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._kept = Kept()

    # --- text --------------------------------------------------------------------------------------------------------

    async def responses(self, request: Request) -> Response:
        """Answers are kept for requests that go on with them."""
        keeping = self._keeping(request)
        return await self.answer(keeping.parse, keeping.answer, "chat", request)

    def _keeping(self, request: Request) -> Keeping:
        return Keeping(self._kept, request.scope.get("state", {}).get("key_digest", ""))

    async def response(self, request: Request) -> Response:
        """A kept answer, or the word that it is kept no longer."""
        keeping, ident = self._keeping(request), request.path_params["ident"]
        if request.method == "DELETE":
            self._kept.drop(keeping.holder, ident)
            return json({"id": ident, "object": "response", "deleted": True})
        if request.query_params.get("stream", "false") == "true":
            raise bad("stream", "is for answers that are being made: leave it out, this one is complete")
        return json(self._kept.found(keeping.holder, ident).body)

    async def input_items(self, request: Request) -> Response:
        """What a kept answer answers."""
        keeping, ident, asked = self._keeping(request), request.path_params["ident"], request.query_params
        listed = items(self._kept.found(keeping.holder, ident).turns[:-1], ident)
        return json(page(listed, asked.get("order", "desc"), asked.get("limit", "20"), asked.get("after", "")))

    async def input_tokens(self, request: Request) -> Response:
        wanted, question = self._keeping(request).parse(countable(await read_body(request)))
        return json(responses.InputTokens(await self._counted(wanted.model, question)))

    async def answer(
        self,
        parse: Callable[[bytes], tuple[P, Question | None]],
        make: Callable[[P, str, Callable[[], Parser]], Answer],
        operation: str,
        request: Request,
    ) -> Response:
        wanted, question = parse(await read_body(request))
        model = await self.gateway.model()
        name = model.called(wanted.model)
        if question is None:  # Ollama's way to load a model, which has happened
            return json(make(wanted, name, NoTools).loaded())
        self._note(question.ignored)
        answer = make(wanted, name, partial(question.parser, model.calling))
        if question.gap is not None:
            marks, gap = await self.gateway.marks(), question.gap
            question = replace(question, prompts=tuple(filled(one, gap, marks) for one in question.prompts))
        if question.cut != WHOLE_PROMPT:
            question, ids = await self.gateway.cut(question, model)
            answer.prompt_ids = ids if question.cut.shown else ()
        if question.scores:
            question.check(model.vocab_size)  # before any of the prompts, which may be a million, is tokenized
            question, answer.prompts = await self.gateway.spelt(question)
        choices = self._ask(request, question, model, operation)
        answer.sampling = choices.streams[0].sampling
        if wanted.stream:
            events = self._events(choices, answer, request.url.path)
            # What goes wrong before the first token is an answer with a status of its own.
            first = await unless_gone(request.receive, anext(events))
            return EventStream(*first, events, _warnings(request.url.path, question, choices, model), answer.media_type)
        body = await unless_gone(request.receive, self._whole(choices, answer))
        return json(body, headers=_warnings(request.url.path, question, choices, model))

    def _note(self, ignored: Ignored) -> None:
        self.gateway.metrics.ignore(ignored)
        if ignored.hints or ignored.unknown:
            log.debug("ignored of a request: %s", ", ".join((*ignored.hints, *ignored.unknown)))

    async def count_tokens(self, request: Request) -> Response:
        wanted, question = messages.parse_count(countable(await read_body(request)))
        return json({"input_tokens": await self._counted(wanted.model, question)})

    async def _counted(self, name: str, question: Question) -> int:
        """The number of tokens of a conversation."""
        model = await self.gateway.model()
        model.called(name)
        return len(await self.gateway.ids_of(question.prompts[0], question, model))

    async def computed(self, compute: Callable[[Gateway, bytes], Awaitable[object]], request: Request) -> Response:
        return json(await compute(self.gateway, await read_body(request)))

    async def tokenizer_info(self, request: Request) -> Response:
        config = await self.gateway.asked(AsyncClient.tokenizer_config)
        return json({**config, "model_max_length": (await self.gateway.model()).max_context})

    def _ask(self, request: Request, question: Question, model: Model, operation: str) -> Choices:
        how = msgspec.structs.replace(question.how, cache_salt=cache_salt(request.scope, question.how.cache_salt))
        tracing = self.gateway.tracing
        begin = (
            None if tracing is None else partial(tracing.begin, operation, model.names[0], question, request.headers)
        )
        return self.gateway.ask(replace(question, how=how), model, begin)

    async def _whole(self, choices: Choices, answer: Answer) -> bytes:
        made: dict[int, list[Chunk]] = {}
        async with choices:
            async for index, chunk in choices:
                made.setdefault(index, []).append(chunk)
        also = {token for prompt in answer.prompts for token in prompt.token_ids}
        pieces = await self.gateway.pieces_of([chunk for chunks in made.values() for chunk in chunks], also)
        return answer.whole([made[index] for index in sorted(made)], choices.stats, pieces)

    async def _events(self, choices: Choices, answer: Answer, path: str) -> AsyncGenerator[tuple[bytes, bool], None]:
        """See :class:`EventStream`."""
        begun, out = False, b""  # ``out``: what is sent together, because more has come already, or the end follows
        try:
            async with choices:
                async for index, chunk in choices:
                    pieces = await self.gateway.pieces_of([chunk])
                    out += answer.chunk(index, chunk, pieces, choices.stats)
                    if out and not (choices.ready or choices.stats):
                        begun = True
                        yield out, False
                        out = b""
            yield out + answer.end(choices.stats), True
        except ApiError as error:
            if not (begun or out):
                raise
            yield out + answer.fail(error.told_by(path)), True

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        model = await self.gateway.model()
        return json(listing([_card(model, name) for name in model.names]))

    async def model(self, request: Request) -> Response:
        model = await self.gateway.model()
        return json(_card(model, model.called(request.path_params["name"])))

    async def metrics(self, request: Request) -> Response:
        return Response(await self.gateway.scrape(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def described(self, describe: Callable[[Model, StatusReport], object], request: Request) -> Response:
        return json(describe(await self.gateway.model(), await self.gateway.status()))

    async def show(self, request: Request) -> Response:
        wanted, _ = decode(await read_body(request), models.ShowRequest)
        model = await self.gateway.model()
        model.called(wanted.model or wanted.name)
        report, template, marks = await self.gateway.status(), await self._template(), await self.gateway.marks()
        return json(models.show(model, report, template, marks is not None))

    async def _template(self) -> str:
        template = (await self.gateway.asked(AsyncClient.tokenizer_config)).get("chat_template")
        return template if isinstance(template, str) else ""

    async def props(self, request: Request) -> Response:
        return json(await server.props(self.gateway, await self._template()))

    async def slots(self, request: Request) -> Response:
        check_operates(request.scope, "use `duoactor status`")
        return await self.described(server.slots, request)

    async def version(self, version: str, request: Request) -> Response:
        return json({"version": version})

    async def openapi(self, request: Request) -> Response:
        return json(describe(__version__))

    async def health(self, request: Request) -> Response:
        """200 while the verifier answers; the process id lets whoever started us know us again."""
        await self.gateway.status()
        return json({"status": "ok", "pid": os.getpid()})


def _warnings(path: str, question: Question, choices: Choices, model: Model) -> dict[str, str]:
    """The header that says what was not done as it was asked for."""
    warnings = [question.ignored.warning] if question.ignored.warning else []
    room = model.max_context - choices.prompt_tokens
    if question.asked_for is not None and question.asked_for > room:
        cut = f"max_tokens {question.asked_for} was cut to {room}: the context has {model.max_context} tokens"
        warnings.append(in_words_of(path, cut))
    if question.context > model.max_context:
        warnings.append(f"num_ctx {question.context} cannot be had: the context has {model.max_context} tokens")
    line = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
    return {WARNING: re.sub(r"[^ -~]", "?", line)} if line else {}


def _card(model: Model, name: str) -> dict[str, object]:
    return {
        **card(name),
        "root": model.names[0],
        "max_model_len": model.max_context,
        "max_input_tokens": model.max_context,  # Anthropic's names
        "max_tokens": model.max_context,
        "meta": {"n_ctx_train": model.max_context, "n_vocab": model.vocab_size},  # names of llama-server
    }


def json(body: object, headers: dict[str, str] | None = None) -> Response:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(content, headers=headers, media_type="application/json")


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answered(error, request.url.path)


def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    other = _elsewhere(path)
    detail = {
        404: f"there is nothing at {path}; {other or '/openapi.json lists what there is'}",
        405: f"{path} does not take {request.method}; /openapi.json says what it takes",
    }
    if other:
        status = 404
    answer = refused(request, ApiError(status, detail.get(status, str(error.detail))))
    answer.headers.update(error.headers or {})
    return answer


def _elsewhere(path: str) -> str:
    """What to do about a path that other servers serve; "": nothing is known of it."""
    if path.startswith(("/v1/v1/", "/v1/api/")):
        return f"the base URL should end before /v1: this is at {path.removeprefix('/v1')}"
    plain = path.removeprefix("/v1").removeprefix("/v2")
    return next((told for pattern, told in ELSEWHERE.items() if re.fullmatch(pattern, plain)), "")


class Farewell:
    """Names each answer by a request id, the client's own if it gives one. Answers 503 to requests that are cut off
    because the gateway leaves."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        given = Headers(scope=scope).get("x-request-id", "") if scope["type"] == "http" else ""
        ident = given if 0 < len(given) <= 128 and given.isascii() else new_id("req_")

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":  # OpenAI's and Anthropic's name for it
                named = [(name, ident.encode()) for name in (b"x-request-id", b"request-id")]
                message = {**message, "headers": [*message["headers"], *named]}
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if not self._gateway.draining:
                raise
            if not begun:
                await refused(Request(scope), leaving())(scope, receive, noted)


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # no reader is left


def _broken(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this answer, and the server logs it
    return refused(request, ApiError(500, f"the gateway failed ({type(error).__name__}); its log says more"))
