"""What is told of the prefix cache over HTTP, and who shares it with whom."""

import pytest

from protocols.validation import SHARED_SALT
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
    assert (response["input_tokens"], response["input_tokens_details"]) == (
        5,
        {"cached_tokens": 4, "cache_write_tokens": 0},
    )
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


async def test_each_api_key_is_an_owner_of_its_own_to_the_verifier_and_no_key_is_one_more():
    made = cluster()
    async with served(made, keys=("one", "two")) as gateway:
        for key in ("one", "one", "two"):
            await cached(gateway, key)
    first, again, other = [scope for scope, _ in made.target.known]
    assert first == again != other and "" not in (first, other)
    made = cluster()
    async with served(made) as gateway:
        await cached(gateway)
    assert [scope for scope, _ in made.target.known] == [""]


async def test_two_keys_share_by_a_secret_that_both_send_and_not_by_a_salt_that_can_be_guessed():
    secret = SHARED_SALT + "0123456789abcdef0123456789abcdef"
    async with served(cluster(), keys=("one", "two")) as gateway:
        found = [await cached(gateway, key, cache_salt=salt) for salt in ("team", secret) for key in ("one", "two")]
        body = {"messages": TURNS, "cache_salt": SHARED_SALT + "team"}
        headers = {"authorization": "Bearer one"}
        refused = await gateway.request("POST", "/v1/chat/completions", body, headers=headers)
    assert found == [0, 0, 0, 4]
    assert refused.status_code == 400 and "openssl rand -hex 16" in refused.text


async def test_keys_that_share_caches_do_not_share_conversations():
    async with served(cluster(), keys=("one", "two"), share_caches=True) as gateway:

        async def answer(key: str, **more: str):
            headers, body = {"authorization": f"Bearer {key}"}, {"input": "Hello", "max_output_tokens": 3, **more}
            return await gateway.request("POST", "/v1/responses", body, headers=headers)

        first = (await answer("one")).json()["id"]
        assert (await answer("two", previous_response_id=first)).status_code == 404
        assert (await answer("one", previous_response_id=first)).status_code == 200
