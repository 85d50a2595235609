"""llama-server's own API, and gaps in a text, which have marks in some tokenizers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from duoactor.serve.fill import FillMarks, Gap
from tests.serve.gateway import TURNS, served
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyCodec

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@dataclass
class MarkedCodec(ToyCodec):
    """A tokenizer in which some names are one token each; notes what it is given."""

    names: tuple[str, ...] = QWEN
    texts: list[str] = field(default_factory=list)

    def encode(self, text: str, special_tokens: bool = True, context: int = 0) -> list[int]:
        self.texts.append(text)
        found = re.findall("|".join(map(re.escape, self.names)) + "|.", text, re.DOTALL)
        return [self.names.index(one) + 2 if one in self.names else 10 + ord(one) % 50 for one in found]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.names[one - 2] if 0 <= one - 2 < len(self.names) else chr(63 + one) for one in ids]


async def test_a_completion_says_how_it_ended_and_how_long_it_took():
    asked = {"prompt": "Hi", "n_predict": 8, "temperature": 0, "cache_prompt": True, "id_slot": -1}
    async with served() as gateway:
        whole = (await gateway.post("/completion", **asked)).json()
        parts = await gateway.events("/completions", **asked)
        text = (await gateway.post("/v1/completions", prompt="Hi", max_tokens=8, temperature=0)).json()
    assert whole["content"] == text["choices"][0]["text"] == "".join(part["content"] for part in parts)
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 8)
    assert whole["tokens_evaluated"] == text["usage"]["prompt_tokens"] and whole["prompt"] == "Hi"
    assert whole["timings"]["predicted_n"] == 8 and whole["generation_settings"]["temperature"] == 0
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["content"] == "" and sum(len(part["tokens"]) for part in parts) == 8


async def test_parameters_have_llama_servers_names_and_meaning():
    ours = {"prompt": "Hi", "seed": 3, "top_k": 9, "max_tokens": 9, "logit_bias": {"5": -100.0, "6": 2}}
    theirs = {**ours, "n_predict": 9, "repeat_penalty": 1.2, "logit_bias": [[5, False], [6, 2]], "seed": 3}
    del theirs["max_tokens"]
    async with served() as gateway:
        made = (await gateway.post("/completion", **theirs, n_probs=2, return_tokens=True)).json()
        usual = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05}  # llama-server's
        same = (await gateway.post("/v1/completions", **ours, **usual, repetition_penalty=1.2, logprobs=2)).json()
    assert made["content"] == same["choices"][0]["text"]
    scores = made["completion_probabilities"]
    assert [one["id"] for one in scores] == made["tokens"]
    assert scores[0]["logprob"] == same["choices"][0]["logprobs"]["token_logprobs"][0]


async def test_no_tokens_only_read_the_prompt_and_fields_are_chosen_by_name():
    async with served() as gateway:
        nothing = (await gateway.post("/completion", prompt="Hi", n_predict=0)).json()
        few = await gateway.post(
            "/completion", prompt="Hi", n_predict=4, response_fields=["content", "timings/predicted_n", "nothing"]
        )
        several = (await gateway.post("/completion", prompt=["Hi", "Ho"], n_predict=3)).json()
    assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)
    assert set(few.json()) == {"content", "timings/predicted_n"} and few.json()["timings/predicted_n"] == 4
    assert [one["index"] for one in several] == [0, 1]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"n_predict": -2}, "n_predict"),
        ({"prompt": [12, "x"]}, "prompt"),
        ({"logit_bias": [["Hello", 1]]}, "logit_bias"),
        ({"logit_bias": [[5, True]]}, "logit_bias"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(given: dict, param: str):
    async with served() as gateway:
        refused = await gateway.post("/completion", **{"prompt": "x", **given})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text


async def test_texts_and_tokens_change_into_each_other_and_conversations_into_text():
    async with served() as gateway:
        ids = (await gateway.post("/tokenize", content="Hi")).json()["tokens"]
        named = (await gateway.post("/tokenize", content="Hi", with_pieces=True)).json()["tokens"]
        back = (await gateway.post("/detokenize", tokens=ids)).json()
        nothing = (await gateway.post("/tokenize", content="")).json()
        shown = (await gateway.post("/apply-template", messages=TURNS)).json()
        whole = (await gateway.post("/tokenize", messages=TURNS)).json()
        text = (await gateway.post("/detokenize", tokens=whole["tokens"])).json()
    assert [one["id"] for one in named] == ids and back["content"] == back["prompt"]
    assert nothing == {"tokens": []} and shown["prompt"] == text["content"]


async def test_the_server_describes_itself_as_llama_servers_page_asks():
    async with served() as gateway:
        props = (await gateway.request("GET", "/props")).json()
        slots = (await gateway.request("GET", "/slots")).json()
        health = await gateway.request("GET", "/v1/health")
        card = (await gateway.request("GET", "/v1/models")).json()["data"][0]
    assert props["default_generation_settings"]["n_ctx"] == INFO.max_context == card["meta"]["n_ctx_train"]
    params = props["default_generation_settings"]["params"]
    assert [params[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [0.8, 40, 0.95, 0.05]
    assert props["total_slots"] == len(slots) == 1 and slots[0]["is_processing"] is False
    assert health.status_code == 200 and card["meta"]["n_vocab"] == INFO.vocab_size


async def test_a_gap_is_filled_between_the_tokenizers_marks():
    asked = {"input_prefix": "def f(", "input_suffix": "return x", "prompt": "x"}
    expected = "<|fim_prefix|>def f(<|fim_suffix|>return x<|fim_middle|>x"
    async with served(Cluster(codec=MarkedCodec())) as gateway:
        made = await gateway.post("/infill", n_predict=4, temperature=0, **asked)
        text = await gateway.post("/v1/completions", prompt="def f(", suffix="return x", max_tokens=4, temperature=0)
        theirs = await gateway.post("/api/generate", model="toy", prompt="def f(", suffix="return x", stream=False)
        shown = (await gateway.post("/api/show", model="toy")).json()
        texts = gateway.cluster.codec.texts
    assert made.status_code == text.status_code == theirs.status_code == 200
    assert expected in texts and texts.count(expected[:-1]) == 2
    assert "insert" in shown["capabilities"]


async def test_without_marks_a_gap_is_refused():
    async with served() as gateway:
        fill = await gateway.post("/infill", input_prefix="a", input_suffix="b")
        text = await gateway.post("/v1/completions", prompt="a", suffix="b")
    assert [one.json()["error"]["param"] for one in (fill, text)] == ["input_suffix", "suffix"]
    assert "marks" in fill.json()["error"]["message"]


def test_other_files_stand_in_front_as_the_model_has_them():
    gap = Gap("b", files=(("x.py", "1"),))
    plain = FillMarks("<P>", "<S>", "<M>")
    project = FillMarks("<P>", "<S>", "<M>", project=True)
    assert plain.prompt("a", gap) == "1\n<P>a<S>b<M>"
    assert project.prompt("a", gap) == "<|repo_name|>myproject\n<|file_sep|>x.py\n1\n<|file_sep|>filename\n<P>a<S>b<M>"
