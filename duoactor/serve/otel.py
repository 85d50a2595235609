"""OpenTelemetry traces: a span for each question, a child of it for its prefill. Needs ``duoactor[otel]``.

Attributes are those of the semantic conventions for generative AI; what only speculation has is under ``duoactor.``.
Configured by the standard ``OTEL_*`` variables alone: without an exporter or an endpoint in them nothing is imported.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duoactor.client.metrics import mean_acceptance_length, together
from duoactor.serve.errors import ApiError
from duoactor.serve.question import Question
from protocols.extras import install
from protocols.messages import Chunk, RequestStats

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("duoactor.serve")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FLUSH_S = 1.5  # seconds for the last spans; the supervisor gives five in all


class Tracing:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("duoactor")

    def begin(self, operation: str, model: str, question: Question, headers: Mapping[str, str]) -> QuestionSpan:
        """``headers``: of the HTTP request; a ``traceparent`` among them is the parent."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            f"{operation} {model}",
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "duoactor",
                "gen_ai.request.model": model,
                **_asked(question),
            },
        )
        return QuestionSpan(span, self._tracer.start_span("prefill", context=set_span_in_context(span)), question.n)

    def close(self) -> None:
        """Send what is left, but wait for no collector that does not answer."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_S)


class QuestionSpan:
    """The span of a question, to the end of its last answer."""

    def __init__(self, span: Span, prefill: Span, n: int) -> None:
        self._span, self._prefill, self._n = span, prefill, n
        self._waiting = True  # whether the first token is still to come
        self._reasons: dict[int, str] = {}

    def chunk(self, index: int, chunk: Chunk) -> None:
        if self._waiting:
            self._waiting = False
            self._prefill.end()
        if chunk.finish_reason is not None:
            self._reasons[index] = str(chunk.finish_reason)

    def end(self, stats: Sequence[RequestStats], error: BaseException | None) -> None:
        """``stats``: of every answer; none where they did not all come to their end."""
        from opentelemetry.trace import Status, StatusCode

        if self._reasons:
            self._span.set_attribute(
                "gen_ai.response.finish_reasons", [self._reasons[i] for i in sorted(self._reasons)]
            )
        if stats:
            self._span.set_attributes(_came(stats, self._n))
        elif isinstance(error, ApiError):
            self._span.set_attribute("error.type", str(error.status))
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        elif error is None or isinstance(error, Exception):
            self._span.set_attribute("error.type", "_OTHER" if error is None else type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR, "the answer did not come to its end"))
        else:  # the client left
            self._span.set_attribute("error.type", "cancelled")
        if self._waiting:
            self._prefill.end()
        self._span.end()


def _asked(question: Question) -> dict[str, Any]:
    sampling = question.sampling
    found: dict[str, Any] = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "duoactor.method": question.how.wanted_method or "default",
    }
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    if question.asked_for is not None:
        found["gen_ai.request.max_tokens"] = sampling.max_tokens
    if question.seeded:
        found["gen_ai.request.seed"] = sampling.seed if sampling.seed < 1 << 63 else sampling.seed - (1 << 64)
    if sampling.stop:
        found["gen_ai.request.stop_sequences"] = list(sampling.stop)
    if question.n > 1:
        found["gen_ai.request.choice.count"] = question.n
    return found


def _came(stats: Sequence[RequestStats], n: int) -> dict[str, Any]:
    """Attributes of ``n`` answers to each prompt; the prompt counts once, as in the answer's usage."""
    whole = together(stats)
    return {
        "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in stats[::n]),
        "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in stats),
        "duoactor.method": whole.method,
        "duoactor.rounds": whole.rounds,
        "duoactor.draft_tokens": whole.draft_tokens,
        "duoactor.accepted_tokens": whole.accepted_tokens,
        "duoactor.draft_acceptance_rate": whole.accepted_tokens / whole.draft_tokens if whole.draft_tokens else 0.0,
        "duoactor.mean_acceptance_length": mean_acceptance_length(whole),
    }


def from_environment() -> Tracing | None:
    """Tracing by the ``OTEL_*`` variables; None: no traces."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp" if any(map(os.environ.get, ENDPOINTS)) else "none")
    if exporter.strip() in ("", "none") or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

        made: SpanExporter
        if exporter.strip() == "console":
            made = ConsoleSpanExporter()
        elif exporter.strip() == "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            made = OTLPSpanExporter()
        else:
            log.warning("no traces: OTEL_TRACES_EXPORTER may be otlp, console or none, and not %s", exporter)
            return None
    except ModuleNotFoundError as error:
        log.warning("no traces: they need %s: %s", error.name, install("otel"))
        return None
    os.environ.setdefault("OTEL_SERVICE_NAME", "duoactor")
    provider = TracerProvider(shutdown_on_exit=False)  # a collector that does not answer must not hold up our end
    provider.add_span_processor(BatchSpanProcessor(made))
    return Tracing(provider)
