"""Traces of requests: one span each, a child for the prefill, the caller's trace as the parent."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from duoactor.serve.otel import Tracing, from_environment
from tests.serve.gateway import TURNS, served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider)


async def test_a_request_is_a_span_with_its_usage_and_acceptance_and_a_child_for_its_prefill(spans, tracing):
    async with served(tracing=tracing) as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        answer = (await gateway.chat(max_tokens=40, method="sps", seed=3, stop=["#"], ignore_eos=True)).json()
    prefill, span = spans.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("chat toy", SpanKind.SERVER, None)
    assert prefill.name == "prefill" and prefill.parent.span_id == span.context.span_id
    assert span.start_time <= prefill.start_time < prefill.end_time < span.end_time
    found, drafts = span.attributes, answer["metrics"]["speculative_decoding"]
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "toy"
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.seed"]) == (40, 3)
    assert found["gen_ai.request.stop_sequences"] == ("#",)
    assert found["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"] == 40
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["duoactor.method"] == "sps"
    assert found["duoactor.draft_acceptance_rate"] == pytest.approx(drafts["draft_acceptance_rate"])
    assert 0 < found["duoactor.accepted_tokens"] <= found["duoactor.draft_tokens"]
    assert span.status.status_code is StatusCode.UNSET


async def test_the_callers_trace_is_the_parent_in_every_api_streaming_or_not(spans, tracing):
    bodies = {
        "/v1/chat/completions": {"messages": TURNS, "n": 2, "stream": True},
        "/v1/completions": {"prompt": "Hello"},
        "/v1/responses": {"input": "Hello"},
        "/v1/messages": {"messages": TURNS, "model": "toy", "max_tokens": 8, "stream": True},
    }
    async with served(tracing=tracing) as gateway:
        for path, body in bodies.items():
            headers = {"traceparent": PARENT}
            assert (await gateway.request("POST", path, {**body, "model": "toy"}, headers=headers)).status_code == 200
    whole = [span for span in spans.get_finished_spans() if span.name != "prefill"]
    assert [span.name for span in whole] == ["chat toy", "text_completion toy", "chat toy", "chat toy"]
    assert {f"{span.context.trace_id:032x}" for span in whole} == {PARENT.split("-")[1]}
    assert {f"{span.parent.span_id:016x}" for span in whole} == {PARENT.split("-")[2]}
    assert whole[0].attributes["gen_ai.request.choice.count"] == 2
    assert len(whole[0].attributes["gen_ai.response.finish_reasons"]) == 2


async def test_a_client_that_leaves_and_a_request_that_fails_end_their_spans(spans, tracing):
    async with served(tracing=tracing) as gateway:
        stream = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        await gateway.idle()
        assert (await gateway.post("/v1/completions", prompt="x" * 5000)).status_code == 400
        while len(spans.get_finished_spans()) < 4:
            await asyncio.sleep(0.01)
    left, refused = (span for span in spans.get_finished_spans() if span.name != "prefill")
    assert left.attributes["error.type"] == "cancelled" and "gen_ai.usage.output_tokens" not in left.attributes
    assert refused.attributes["error.type"] == "400" and refused.status.status_code is StatusCode.ERROR
    assert "context" in refused.status.description


def test_only_the_standard_variables_turn_traces_on(monkeypatch):
    assert from_environment() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as also:
            also.setenv(name, value)
            assert from_environment() is None
    tracing = from_environment()
    assert isinstance(tracing, Tracing)
    tracing.close()


@pytest.mark.parametrize(("exporter", "words"), [("otlp", "[otel]"), ("zipkin", "may be otlp, console or none")])
def test_what_cannot_be_exported_is_said_once_and_serves_on(monkeypatch, caplog, exporter, words):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert from_environment() is None
    assert words in caplog.text


def test_without_those_variables_nothing_of_it_is_imported():
    code = "import sys, duoactor.serve.start as s; s.from_environment(); print('opentelemetry' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": ""})
    assert out.stdout.strip() == "False"
