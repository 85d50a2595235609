import math

import msgspec
import pytest

from protocols.errors import RequestError
from protocols.messages import Generate, Sampling, StructuredOutputs
from protocols.validation import problems, validate

BAD = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 1e-7),
    ("temperature", 1e9),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("top_k", -1),
    ("min_p", -0.1),
    ("min_p", 1.5),
    ("min_p", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3.0),
    ("frequency_penalty", math.nan),
    ("max_tokens", 0),
    ("logprobs", 21),
    ("logprobs", -2),
    ("stop", ("x",) * 17),
    ("stop", ("a", "")),
    ("stop", ("y" * 2000,)),
    ("stop_token_ids", (1, 100)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", (1,) * 1025),
    ("logit_bias", ((100, 1.0),)),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((5, 100.5),)),
    ("logit_bias", ((5, math.nan),)),
    ("logit_bias", ((5, 1.0), (5, 2.0))),
    ("logit_bias", tuple((i, 1.0) for i in range(1025))),
    ("min_tokens", -1),
    ("min_tokens", 257),
    ("bad_words", ("a", " ")),
    ("bad_words", ("y" * 1025,)),
    ("bad_words", ("x",) * 1025),
    ("seed", 1 << 64),
    ("seed", -(1 << 63) - 1),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_in_one_sentence_that_names_it(field, value):
    with pytest.raises(RequestError) as refused:
        validate(Generate("r", "x", sampling=msgspec.structs.replace(Sampling(), **{field: value})), 100)
    assert refused.value.code == "bad_request"
    text = str(refused.value)
    assert field in text
    assert not text.endswith(".")


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1e-5, top_k=1000, top_p=1e-9, min_p=1.0, seed=(1 << 64) - 1),
        Sampling(repetition_penalty=1.3, presence_penalty=-2.0, frequency_penalty=2.0, seed=-(1 << 63)),
        Sampling(logit_bias=((0, -100.0), (99, 100.0))),
        Sampling(min_tokens=256, bad_words=("y" * 1024,) * 1024),
        Sampling(stop=("a", "\n\n"), stop_token_ids=(0, 99), logprobs=20, max_tokens=1),
        Sampling(temperature=1e6, stop_token_ids=(99,) * 1024, stop=("y" * 1024,) * 16, repetition_penalty=100.0),
    ],
)
def test_values_at_the_edge_of_their_range_pass_and_a_peer_can_read_them(sampling):
    request = Generate("r", "x", sampling=sampling)
    validate(request, 100)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request


def test_every_bad_value_has_its_own_sentence():
    found = list(problems(Sampling(temperature=-1.0, top_k=-1, top_p=2.0), 100))
    assert [text.split()[0] for text in found] == ["temperature", "top_k", "top_p"]


@pytest.mark.parametrize("field", ["num_speculative_tokens", "sequences"])
@pytest.mark.parametrize("value", [-5, 10**9])
def test_a_draft_length_that_nobody_can_draft_is_refused(field, value):
    with pytest.raises(RequestError, match=f"{field} must be 0 .adaptive. to .*, not {value}"):
        validate(Generate("r", "x", **{field: value}))


@pytest.mark.parametrize(
    "wanted", [StructuredOutputs(), StructuredOutputs("{}", "a"), StructuredOutputs("{}", "a", "start: /a/")]
)
def test_a_structure_is_given_in_exactly_one_way(wanted):
    with pytest.raises(RequestError, match="exactly one of json_schema, regex and grammar"):
        validate(Generate("r", "x", structured_outputs=wanted))


@pytest.mark.parametrize("name", ["json_schema", "regex", "grammar"])
def test_the_text_of_structured_outputs_is_bounded(name):
    validate(Generate("r", "x", structured_outputs=StructuredOutputs(**{name: "a" * (1 << 18)})))
    with pytest.raises(RequestError, match=rf"structured_outputs.{name} must be 1 to 262144 characters"):
        validate(Generate("r", "x", structured_outputs=StructuredOutputs(**{name: "a" * ((1 << 18) + 1)})))
