"""Log-probabilities of a prompt's own tokens: ``echo`` with ``logprobs``, as evaluations ask, and vLLM's way."""

import pytest

from tests.serve.gateway import served
from tests.world.cluster import Cluster
from tests.world.structured import codec, target

PATH = "/v1/completions"
IDS = [470, 300, 17, 1, 2044, 300, 17, 8191, *range(40, 80)]  # 1 ends texts


def serving():
    return served(Cluster(target=target(), codec=codec()))


def scores(answer) -> list:
    return answer.json()["choices"][0]["logprobs"]["token_logprobs"]


async def test_evaluations_get_every_tokens_log_probability_and_one_more_token():
    ask = {"prompt": IDS, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    async with serving() as gateway:
        whole = await gateway.post(PATH, **ask)
        begun = await gateway.post(PATH, **{**ask, "prompt": IDS[:9]})
        plain = await gateway.post(PATH, **{**ask, "echo": False, "prompt": IDS[:8]})
    choice, usage = whole.json()["choices"][0], whole.json()["usage"]
    found = choice["logprobs"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(IDS), 1)
    assert len(found["tokens"]) == len(found["text_offset"]) == len(scores(whole)) == len(IDS) + 1
    assert scores(whole)[0] is None and found["top_logprobs"][0] is None
    assert scores(whole)[1:9] == pytest.approx(scores(begun)[1:9], abs=1e-4)
    assert max(found["top_logprobs"][8].values()) == pytest.approx(
        scores(plain)[0], abs=1e-4
    )  # greedy is the likeliest
    assert choice["text"].startswith(codec().decode(IDS, False))


async def test_a_text_is_echoed_as_it_was_given_and_scored_alone():
    async with serving() as gateway:
        alone = (await gateway.post(PATH, prompt=["def f(x):", "a"], max_tokens=0, echo=True, logprobs=0)).json()
        plain = (await gateway.post(PATH, prompt="def f(x):", max_tokens=4, echo=True, temperature=0)).json()
        usual = (await gateway.post(PATH, prompt="def f(x):", max_tokens=4, temperature=0)).json()
    assert [choice["text"] for choice in alone["choices"]] == ["def f(x):", "a"]
    assert alone["usage"]["completion_tokens"] == 0
    assert plain["choices"][0]["text"] == "def f(x):" + usual["choices"][0]["text"]
    assert plain["choices"][0]["logprobs"] is None and plain["usage"]["total_tokens"] == usual["usage"]["total_tokens"]


async def test_vllms_prompt_logprobs_stand_beside_the_answer():
    async with serving() as gateway:
        answer = (await gateway.post(PATH, prompt=[IDS, IDS[:3]], n=2, max_tokens=2, prompt_logprobs=1)).json()
    first, second, third, fourth = answer["choices"]
    assert (
        first["prompt_logprobs"] == second["prompt_logprobs"] and third["prompt_logprobs"] == fourth["prompt_logprobs"]
    )
    assert [len(one["prompt_logprobs"]) for one in (first, third)] == [len(IDS), 3]
    assert first["prompt_logprobs"][0] is None and first["logprobs"] is None
    assert str(IDS[1]) in first["prompt_logprobs"][1] and first["prompt_logprobs"][1][str(IDS[1])]["logprob"] < 0


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"echo": True, "stream": True}, "echo"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"echo": True, "structured_outputs": {"regex": "a"}}, "echo"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(changes, param):
    async with served() as gateway:
        answer = await gateway.post(PATH, prompt="x", **changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
