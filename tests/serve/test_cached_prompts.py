"""What is told of the prefix cache over HTTP, and who shares it with whom."""

import pytest

from tests.serve.gateway import LANGUAGE, served
from tests.serve.test_metrics import scrape
from tests.world.cluster import Cluster

TURNS = [{"role": "user", "content": "Hello"}]


def cluster() -> Cluster:
    made = Cluster(language=LANGUAGE)
    made.target.caches = True
    return made


async def cached(gateway, key="", **body) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"messages": TURNS, "max_tokens": 3, **body}
    answer = await gateway.request("POST", "/v1/chat/completions", body, headers=headers)
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_a_prompt_that_was_asked_before_is_told_as_cached_in_every_api():
    async with served(cluster()) as gateway:
        assert [await cached(gateway), await cached(gateway), await cached(gateway, n=3)] == [0, 4, 4]
        ask = {"model": "toy", "max_tokens": 3, "messages": TURNS}
        message = (await gateway.post("/v1/messages", **ask)).json()["usage"]
        events = await gateway.events("/v1/messages", **ask)
        response = (await gateway.post("/v1/responses", input="Hello", max_output_tokens=3)).json()["usage"]
        found = await scrape(gateway)
        report = await gateway.gateway.status()
    wanted = {"input_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 3}
    assert message == events[-2]["usage"] == wanted
    assert events[0]["message"]["usage"] == wanted | {"output_tokens": 0}
    assert (response["input_tokens"], response["input_tokens_details"]) == (5, {"cached_tokens": 4})
    assert found.sum("prefix_cache_queries_total") == 8 * 5 and found.sum("prefix_cache_hits_total") == 7 * 4
    assert report.counters["prefix_cache_hits"] == 7 * 4


@pytest.mark.parametrize(("share_caches", "of_another"), [(False, 0), (True, 4)])
async def test_what_one_key_asked_is_fast_for_another_only_if_the_operator_says_so(share_caches, of_another):
    async with served(cluster(), keys=("one", "two"), share_caches=share_caches) as gateway:
        assert [await cached(gateway, "one"), await cached(gateway, "one")] == [0, 4]
        assert [await cached(gateway, "two"), await cached(gateway, "two")] == [of_another, 4]


async def test_requests_with_different_salts_share_nothing():
    async with served(cluster()) as gateway:
        found = [await cached(gateway, cache_salt=salt) for salt in ("a", "b", "a", "", "")]
    assert found == [0, 0, 4, 0, 4]
