"""``/metrics`` for Prometheus, under vLLM's names with ``duoactor:`` before them.

Counters are the verifier's own: they count every client's work, also that of other gateways, and a gateway that starts
anew goes on where they are. Latencies are this gateway's, as its clients see them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from duoactor.serve.fields import Ignored
from protocols.messages import Chunk, StatusReport

# seconds, as in vLLM
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_BETWEEN_TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
# name, the verifier's own name, meaning
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Tokens of prompts."),
    ("generation_tokens", "generation_tokens", "Tokens of answers."),
    ("prefix_cache_queries", "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."),
    ("prefix_cache_hits", "prefix_cache_hits", "Prompt tokens that the prefix cache had."),
    ("num_preemptions", "preempted", "Requests that gave up their room in the KV pool, and were computed again."),
)


class Metrics:
    """This gateway's figures; :meth:`expose` joins the verifier's."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._verifier = _Verifier()
        registry.register(self._verifier)
        self._registry = registry
        self.ignored = Counter(
            "duoactor:ignored_parameters",
            "Parameters of requests that were ignored: hints by their names, unknown ones together.",
            ["parameter"],
            registry=registry,
        )

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"duoactor:{name}_seconds", text, buckets=buckets, registry=registry)

        self.first_token = histogram(
            "time_to_first_token", "From a request's arrival at the gateway to its first token.", _FIRST_TOKEN
        )
        self.between_tokens = histogram(
            "inter_token_latency", "Time of a round over its tokens, once for each of them.", _BETWEEN_TOKENS
        )
        self.whole = histogram(
            "e2e_request_latency", "From a request's arrival at the gateway to the end of its last answer.", _WHOLE
        )

    def ignore(self, ignored: Ignored) -> None:
        for name in ignored.hints:
            self.ignored.labels(name).inc()
        if ignored.unknown:
            self.ignored.labels("").inc(len(ignored.unknown))

    def expose(self, report: StatusReport | None) -> bytes:
        """The text that Prometheus reads; without a ``report`` what the gateway itself knows."""
        self._verifier.report = report
        return generate_latest(self._registry)


class RequestTimer:
    """Times one request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}  # when each choice's newest chunk came

    def chunk(self, index: int, chunk: Chunk) -> None:
        now = time.perf_counter()
        count = len(chunk.token_ids)
        if index not in self._last:
            self._metrics.first_token.observe(now - self._began)
        elif count:
            share = (now - self._last[index]) / count
            for _ in range(count):
                self._metrics.between_tokens.observe(share)
        self._last[index] = now

    def end(self) -> None:
        self._metrics.whole.observe(time.perf_counter() - self._began)


class _Verifier(Collector):
    """A status report as metrics."""

    report: StatusReport | None = None

    def describe(self) -> list[Metric]:
        return []  # else registering would collect

    def collect(self) -> Iterator[Metric]:
        report = self.report
        yield GaugeMetricFamily("duoactor:up", "1 if the verifier answered this scrape.", float(report is not None))
        if report is None:
            return
        waiting, target = sum(request.state == "queued" for request in report.requests), report.target
        gauges = (
            ("num_requests_running", "Requests in prefill or decode.", len(report.requests) - waiting),
            ("num_requests_waiting", "Requests in the queue.", waiting),
            ("kv_cache_usage_perc", "Share of the KV pool in use, 1 is all.", target.kv_used / (target.kv_slots or 1)),
            ("num_drafters", "Drafters that are connected.", len(report.drafters)),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"duoactor:{name}", text, float(value))
        counters = report.counters
        for name, counter, text in _COUNTERS:
            yield CounterMetricFamily(f"duoactor:{name}", text, counters.get(counter, 0))
        ended = CounterMetricFamily(
            "duoactor:request_success", "Answers that came to an end.", labels=["finished_reason"]
        )
        for reason in ("stop", "length"):
            ended.add_metric([reason], counters.get(f"finished_{reason}", 0))
        yield ended
        yield from _drafts(report)


def _drafts(report: StatusReport) -> Iterator[Metric]:
    labels = ["method", "drafter"]
    name = "duoactor:spec_decode_num"
    rounds = CounterMetricFamily(f"{name}_drafts", "Rounds with draft tokens.", labels=labels)
    tokens = CounterMetricFamily(f"{name}_draft_tokens", "Draft tokens that were verified.", labels=labels)
    accepted = CounterMetricFamily(f"{name}_accepted_tokens", "Draft tokens that were accepted.", labels=labels)
    positions = CounterMetricFamily(
        f"{name}_accepted_tokens_per_pos",
        "Accepted draft tokens by position in the draft.",
        labels=[*labels, "position"],
    )
    speedup = GaugeMetricFamily(
        "duoactor:speedup",
        "Speed-up now: tokens per second lately, over those of plain decoding at its measured cost.",
        labels=labels,
    )
    for total in report.totals:
        own = [total.method, total.drafter]
        rounds.add_metric(own, total.drafts)
        tokens.add_metric(own, total.draft_tokens)
        accepted.add_metric(own, total.accepted_tokens)
        for position, count in enumerate(total.accepted_per_position):
            positions.add_metric([*own, str(position)], count)
        if total.speedup > 0:
            speedup.add_metric(own, total.speedup)
    step = GaugeMetricFamily("duoactor:draft_step_seconds", "Measured time of a draft step.", labels=["drafter"])
    for drafter in report.drafters:
        step.add_metric([drafter.actor_id], drafter.step_us / 1e6)
    yield from (rounds, tokens, accepted, positions, speedup, step)
