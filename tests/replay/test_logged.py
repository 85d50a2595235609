import pytest

from actors.records import LoggedRequest, decoded, encoded, read_log
from protocols.errors import ConfigError
from protocols.messages import FinishReason, Sampling

SAMPLING = Sampling(temperature=0.5, seed=2**64 - 1, stop=("a",), logit_bias=((3, 1.5),), max_tokens=7)
ONE = LoggedRequest(prompt=(1, 2), text=(3,), sampling=SAMPLING, finish_reason=FinishReason.STOP, model_id="m")


def test_a_line_says_what_replay_needs_and_nothing_else():
    assert encoded(ONE) == (
        b'{"prompt":[1,2],"text":[3],"sampling":{"temperature":0.5,"stop":["a"],"max_tokens":7,'
        b'"seed":18446744073709551615,"logit_bias":[[3,1.5]]},"finish_reason":"stop","model_id":"m"}\n'
    )
    assert decoded(encoded(ONE)) == ONE


def test_a_log_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(encoded(ONE) * 2 + encoded(ONE)[:-9])
    assert list(read_log(file)) == [ONE, ONE]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b'{"prompt":[],"text":[1]}',
        b'{"prompt":[1],"text":[-1]}',
        b'{"prompt":[1],"text":[1],"sampling":3}',
        b'{"prompt":[1],"text":[1],"sampling":{"temperature":-1}}',
        b'{"prompt":[1],"text":[1],"sampling":{"heat":1}}',
        b"\xff",
        b'{"\xff":1}',
        b'{"prompt":' + b"[" * 100_000,
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, line):
    (tmp_path / "log").write_bytes(encoded(ONE) + line + b"\n")
    with pytest.raises(ConfigError, match=r"line 2 of .* is no logged request"):
        list(read_log(tmp_path / "log"))


def test_a_file_that_is_not_there_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_log(tmp_path / "log"))
