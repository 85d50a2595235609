"""Questions that a target asks itself."""

from itertools import islice

import numpy as np
import pytest

from actors.engines.text.tokenizer import TokenizerCodec
from actors.models import ModelInfo
from actors.training import questions
from actors.training.answers import TargetAnswer
from actors.training.questions import TASK, Questions, prompt_of
from tests.training.test_distill import words

CHATML = (
    "{% for m in messages %}w50 {{ m['role'] == 'user' and 'w51' or 'w52' }} {{ m['content'] }} w1 {% endfor %}"
    "{% if add_generation_prompt %}w50 w52{% endif %}"
)
BRACKETS = "w40 {% for m in messages %}w41 {{ m['content'] }} w42 {% endfor %}"  # the mark behind it ends no text


@pytest.fixture(autouse=True)
def words_as_probes(monkeypatch):
    monkeypatch.setattr(questions, "PROBES", ("w3", "w5", "w7"))


def asked(template):
    tokenizer = words()
    tokenizer.chat_template = template
    codec = TokenizerCodec(tokenizer)
    info = ModelInfo("m", len(tokenizer), 512, frozenset({1}), "")
    return codec, Questions(codec, info, [prompt_of("w9 w8 w7 w6", codec)])


def written(job, *tokens):
    none = np.zeros((len(tokens), 0))
    return TargetAnswer(job, np.array(tokens, np.int32), none.astype(np.int32), none.astype(np.float16))


@pytest.mark.parametrize(
    ("template", "opening", "end"), [(CHATML, (50, 51), 1), (BRACKETS, (40, 41), 42), (None, (1,), None)]
)
def test_a_question_is_what_stands_where_the_template_has_the_users_text(template, opening, end):
    codec, own = asked(template)
    jobs = own.jobs()
    first, second = islice(jobs, 2)
    assert first.prompt.tokens == opening and first.temperature == 1.0 and first.seed != second.seed
    text = (9, 8, 7, 5) if end is None else (9, 8, 7, 5, end)
    own.take(written(first, *text))
    greedy, sampled = islice(jobs, 2)
    assert greedy.prompt == sampled.prompt == prompt_of("w9 w8 w7 w5", codec, TASK)
    assert (greedy.temperature, sampled.temperature > 0) == (0.0, True)
    assert next(jobs).prompt is own.opening


def test_a_question_that_is_known_or_has_no_end_is_not_asked():
    _, own = asked(CHATML)
    job = next(jobs := own.jobs())
    for text in ((9, 8, 7, 6, 1), (9, 8, 7, 5), (9, 1), (1,)):
        own.take(written(job, *text))
    own.take(written(job, 9, 8, 7, 4, 1))
    own.take(written(job, 9, 8, 7, 4, 1))
    assert [one.prompt.task for one in islice(jobs, 3)] == [TASK, TASK, ""]
