"""What the status says of the bytes that a token reads."""

from __future__ import annotations

import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.models import ModelInfo
from duoactor.status import cores_and_rates, reading
from protocols.messages import Reading, TargetStatus
from tests.engines.tiny import make


def test_a_token_reads_every_matrix_once_in_the_bits_in_which_it_lies():
    model = make("llama")
    info = ModelInfo("tiny", model.config.vocab_size, 256, frozenset({0}), "digest")
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    read = CompiledEngine(model, info, 512).reading()
    assert read.read_bytes == pytest.approx(read.bits / 8 * weights)
    assert weights <= read.read_bytes <= 5 * weights  # a small matrix fills its last panel twice


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        (Reading(), ""),
        (
            Reading(400_000_000, 32.0, 10.0),
            "80% of memory's 10 GB/s; a GGUF file would read less: 27% in Q8_0, 15% in Q4_K_M",
        ),
        (Reading(100_000_000, 4.9, 10.0), "a token reads 100 MB (4.9 bits a weight), 20% of memory's 10 GB/s"),
        (Reading(400_000_000, 0.0, 10.0), "a token reads 400 MB, 80% of memory's 10 GB/s"),
        (
            Reading(800_000_000, 8.5, 10.0),
            "more than memory's 10 GB/s: from caches; a GGUF file would read less: 58% in Q4_K_M",
        ),
    ],
    ids=("unknown", "float32", "4 bits", "of other bits", "caches"),
)
def test_the_status_says_what_a_smaller_format_would_read(reads: Reading, said: str):
    kind = "Q3_K" if reads.bits == 4.9 else "float32"
    text = reading(TargetStatus("m", "cpu", kind, 0, 0, tokens_per_second=20.0, reading=reads))
    assert text.endswith(said) and bool(text) == bool(said)


def test_a_file_of_the_small_format_is_not_told_to_become_one():
    reads = Reading(247_000_000, 7.4, 29.0)
    assert "GGUF" not in reading(TargetStatus("m", "cpu", "Q5_0, Q4_K, Q6_K", 0, 0, reading=reads))


def test_the_status_says_what_streams_take_of_memory():
    takes = Reading(400_000_000, 32.0, token_bytes=6144, stream_bytes=25_559_040)
    rows = dict(cores_and_rates(TargetStatus("m", "cpu", "float32", 100_000, 0, reading=takes)))
    assert rows["memory"] == "keys and values take 6.1 kB a token (0.614 GB at most; --kv-tokens) and 25.6 MB a stream"
    assert "memory" not in dict(cores_and_rates(TargetStatus("m", "cpu", "float32", 0, 0)))
