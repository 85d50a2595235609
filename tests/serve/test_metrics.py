"""A scrape of /metrics: vLLM's names, numbers that add up to the requests' own, and a dashboard that asks for them."""

import asyncio
import json
import re
from collections import defaultdict
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.serve.gateway import TURNS, served

ROOT = Path(__file__).parents[2]


class Scrape:
    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.names = {sample.name for sample in self.samples}

    def sum(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == f"duoactor:{name}" and labels.items() <= sample.labels.items()
        ]
        assert found, name
        return sum(found)


async def scrape(gateway) -> Scrape:
    answer = await gateway.request("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Scrape(answer.text)


async def test_sums_over_requests_equal_the_counters():
    async with served() as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        answers = await asyncio.gather(
            *(
                gateway.chat(max_tokens=40, seed=seed, method=method, n=2, ignore_eos=True)
                for seed in range(3)
                for method in ("sps", "tree", "vanilla")
            )
        )
        found = await scrape(gateway)
    answers = [answer.json() for answer in answers]
    sums: dict[str, int] = defaultdict(int)
    for answer in answers:
        sums["prompt"] += 2 * answer["usage"]["prompt_tokens"]  # each of the two answers has a prompt of its own
        sums["generation"] += answer["usage"]["completion_tokens"]
        drafts = answer["metrics"]["speculative_decoding"]
        sums["drafted"] += drafts["num_draft_tokens"]
        sums["accepted"] += drafts["num_accepted_draft_tokens"]
        if drafts["method"] == "sps":
            sums["sps"] += drafts["num_accepted_draft_tokens"]
    assert found.sum("prompt_tokens_total") == sums["prompt"] == 9 * 2 * 5
    assert found.sum("generation_tokens_total") == sums["generation"] == 9 * 2 * 40
    assert found.sum("request_success_total", finished_reason="length") == 18
    assert found.sum("spec_decode_num_draft_tokens_total") == sums["drafted"] > 0
    assert found.sum("spec_decode_num_accepted_tokens_total") == sums["accepted"] > 0
    assert found.sum("spec_decode_num_accepted_tokens_total", method="sps", drafter="d1") == sums["sps"]
    assert found.sum("spec_decode_num_accepted_tokens_per_pos_total") == sums["accepted"]
    assert found.sum("spec_decode_num_drafts_total", method="sps") > 0
    assert found.sum("time_to_first_token_seconds_count") == 18
    assert found.sum("inter_token_latency_seconds_count") == 18 * 39
    assert found.sum("e2e_request_latency_seconds_count") == 9
    assert found.sum("speedup", method="vanilla") > 0
    assert found.sum("up") == found.sum("num_drafters") == 1
    assert found.sum("draft_step_seconds", drafter="d1") > 0


async def test_requests_in_flight_and_their_share_of_the_pool_are_gauges():
    async with served() as gateway:
        stream = await gateway.openai().chat.completions.create(
            model="toy", messages=TURNS, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        during = await scrape(gateway)
        await stream.close()
        await gateway.idle()
        after = await scrape(gateway)
    assert (during.sum("num_requests_running"), during.sum("num_requests_waiting")) == (1, 0)
    assert 0 < during.sum("kv_cache_usage_perc") <= 1
    assert (after.sum("num_requests_running"), after.sum("kv_cache_usage_perc")) == (0, 0)


async def test_a_scrape_without_a_verifier_says_so_and_nothing_false():
    async with served(patience=0.2) as gateway:
        gateway.cluster.stops["verifier"].set()
        await gateway.cluster.tasks["verifier"]
        found = await scrape(gateway)
        gateway.cluster.start_verifier()
    assert found.sum("up") == 0
    assert "duoactor:num_requests_running" not in found.names


async def test_the_dashboard_asks_for_metrics_that_there_are():
    async with served() as gateway:
        gateway.cluster.start_drafter("d1")
        await gateway.cluster.connected("d1")
        await gateway.chat(max_tokens=40, method="sps", ignore_eos=True)
        found = await scrape(gateway)
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    names = {name for expression in asked for name in re.findall(r"duoactor:\w+", expression)}
    assert len(names) > 10
    assert names <= found.names
    for expression in asked:
        for name, labels in re.findall(r"(duoactor:\w+)\{([^}]*)\}", expression):
            known = {label for sample in found.samples if sample.name == name for label in sample.labels}
            assert set(re.findall(r"(\w+)=", labels)) <= known | {"instance"}, expression
