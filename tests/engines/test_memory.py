"""The size of the KV pool, by the memory that is there."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from actors.engines import build
from actors.engines.build import _slots, what_fits
from actors.engines.cache import memory
from actors.engines.cache.memory import MAX_REQUESTS, PoolMemory, available_bytes, kv_slots, zeros
from actors.engines.cache.pool import KVShape
from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.cpu.rings import kv_shapes
from actors.engines.decoder.gpu.engine import recorded_bytes
from actors.engines.weights.gguf_loading import GGUFFile
from actors.engines.weights.source import StoredSource
from protocols.errors import ConfigError, ModelError
from tests.engines.families import model_of
from tests.engines.weights.test_gguf_serving import mixed

CPU, GPU = torch.device("cpu"), torch.device("cuda")
HOST = PoolMemory(CPU)
GIB = 1 << 30


@pytest.fixture
def free(monkeypatch):
    def say(size: int) -> None:
        monkeypatch.setattr(memory, "available_bytes", lambda device: size)

    return say


def host(root: Path, available_kib: int, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n")
    for name, content in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def test_a_small_model_gets_room_for_as_many_requests_as_a_round_holds(free):
    free(20 * GIB)
    assert kv_slots(0, 2560, 24 << 10, HOST) == MAX_REQUESTS * 2560 + 64


def test_a_target_of_131072_positions_takes_half_of_a_24_gib_host_and_no_more(free):
    free(20 * GIB)
    slots = kv_slots(0, 131_072 + 512, 128 << 10, HOST)
    assert slots * (128 << 10) <= 10 * GIB < (slots + 1) * (128 << 10)


def test_a_gpu_without_other_tenants_gives_nine_tenths(free):
    free(40 * GIB)
    assert kv_slots(0, 131_584, 128 << 10, PoolMemory(GPU)) * (128 << 10) <= 36 * GIB


def test_what_rounds_take_beside_the_pool_is_left_to_them(free):
    free(8 * GIB)
    slot = 128 << 10
    alone, less = (kv_slots(0, 131_584, slot, PoolMemory(GPU, reserved=taken)) for taken in (0, GIB))
    assert less == pytest.approx(alone * 7 / 8, abs=1)
    with pytest.raises(ConfigError, match="are free on cuda"):
        kv_slots(7 * GIB // slot + 1, 131_584, slot, PoolMemory(GPU, reserved=GIB))


def test_weights_that_still_lie_in_their_files_are_left_room(free, tmp_path):
    """A second start of a large model on a GPU would have had none for its pool."""
    file = mixed("llama", tmp_path)
    model = GGUFFile(file).for_engine(GGUFFile(file).known_config(), CPU, torch.float32)
    free(model.source.nbytes + (4 << 20))
    [shape, _] = kv_shapes(spec_of(model.config), False)
    assert _slots(0, model, 100_000) == (2 << 20) // shape.slot_bytes(torch.float32)


def test_a_slot_has_the_heads_of_keys_that_the_description_says(free):
    """Falcon 7B has one, and its configuration names none."""
    free(20 << 20)
    model = model_of("Falcon")
    assert spec_of(model.config).attention.kv_heads == 1
    assert _slots(0, model, 1_000_000) == (10 << 20) // KVShape.alike(3, 1, 16).slot_bytes(torch.float32)


def test_weights_of_16_bits_count_as_such_on_a_cpu_whatever_they_are_computed_in():
    weights = {"a": torch.zeros(8, 4, dtype=torch.bfloat16), "b": torch.zeros(3, 5)}

    def size(device: str, dtype: torch.dtype) -> int:
        return StoredSource("tiny", weights, dtype, torch.device(device)).nbytes

    assert size("cpu", torch.float32) == 2 * 32 + 4 * 15 and size("cpu", torch.bfloat16) == 2 * 47
    assert size("cuda", torch.float32) == 4 * 47


def test_an_8b_model_of_a_large_vocabulary_takes_some_hundred_megabytes_beside_it():
    config = LlamaConfig(vocab_size=128_256, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8)
    assert 0.5e9 < recorded_bytes(config, torch.bfloat16) < 1e9


@pytest.mark.parametrize(
    "gigabytes, tried, said",
    [
        (24, 32.0, r"it in BF16 \(16\.1 GB of the 24 GB that are free\), or a smaller model"),
        (12, 16.1, r"it in Q8_0 \(8\.53 GB .*"),
        (8, 16.1, r"it in Q5_K \(6\.02 GB .*"),
        (12, 7.0, r"it in Q5_K .*"),  # what did not fit was smaller than Q8_0
        (4, 16.1, r"a smaller model: of this one no format fits the 4 GB that are free"),
    ],
)
def test_a_model_that_does_not_fit_a_gpu_is_told_the_largest_format_that_does(gigabytes, tried, said):
    assert re.fullmatch(said, what_fits(of_8b(), int(gigabytes * 1e9), int(tried * 1e9)))


def of_8b() -> LlamaConfig:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_key_value_heads": 8}
    return LlamaConfig(vocab_size=128_256, num_attention_heads=32, tie_word_embeddings=False, **sizes)


def test_a_model_that_fits_a_gpu_without_its_cache_is_told_a_format_and_a_smaller_cache(free, monkeypatch):
    free(int(0.865e9))
    monkeypatch.setattr(build, "available_bytes", memory.available_bytes)
    weights = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, nbytes=int(16.1e9))
    model = SimpleNamespace(config=of_8b(), parameters=lambda: iter([weights]))
    with pytest.raises(ModelError) as told:
        _slots(0, model, 131_584)
    said = r"Q8_0 \(8\.53 GB of the 17 GB that are free\), or a smaller model, or a cache of at most (\d+) tokens"
    most = re.search(said, str(told.value))
    assert most and _slots(int(most[1]), model, 131_584) == int(most[1])


def test_where_nothing_sensible_fits_the_sentence_names_the_memory(free):
    free(100 << 20)
    with pytest.raises(ModelError, match=r"0\.105 GB are free on cpu .* smaller model"):
        kv_slots(0, 131_584, 128 << 10, HOST)


def test_more_kv_tokens_than_memory_are_refused_with_what_fits(free):
    free(GIB)
    assert kv_slots(8192, 131_584, 128 << 10, HOST) == 8192
    with pytest.raises(ConfigError, match="choose at most 8,192, or 0"):
        kv_slots(8193, 131_584, 128 << 10, HOST)


@pytest.mark.parametrize(("full", "least"), [(131_584, 448), (64, 128)])
def test_fewer_kv_tokens_than_a_start_needs_are_refused_with_how_many_do(free, full, least):
    free(GIB)
    assert kv_slots(least, full, 1024, HOST) == least
    with pytest.raises(ConfigError, match=f"kv_tokens {least - 1} are too few .* choose at least {least}, or 0"):
        kv_slots(least - 1, full, 1024, HOST)


def test_what_is_free_on_the_host_is_what_linux_calls_available(tmp_path):
    assert available_bytes(CPU, host(tmp_path, 4096)) == 4096 * 1024


def test_a_containers_limit_counts_and_so_do_those_above_it(tmp_path):
    root = host(
        tmp_path,
        8 << 20,
        proc__self__cgroup="0::/a/b\n",
        **{
            "sys__fs__cgroup__a__memory.max": str(GIB),
            "sys__fs__cgroup__a__memory.current": str(GIB // 2),
            "sys__fs__cgroup__a__memory.stat": f"anon 5\ninactive_file {GIB // 4}\n",
            "sys__fs__cgroup__a__b__memory.max": "max\n",
            "sys__fs__cgroup__a__b__memory.current": "17\n",
        },
    )
    assert available_bytes(CPU, root) == GIB // 2 + GIB // 4


def test_the_first_version_of_cgroups_is_read_too(tmp_path):
    root = host(
        tmp_path,
        8 << 20,
        proc__self__cgroup="4:memory:/docker/xyz\n3:cpu:/docker/xyz\n",
        **{
            "sys__fs__cgroup__memory__memory.limit_in_bytes": str(2 * GIB),
            "sys__fs__cgroup__memory__memory.usage_in_bytes": str(GIB),
        },
    )
    assert available_bytes(CPU, root) == GIB


def test_a_pool_takes_memory_only_as_it_is_written():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    pool, _ = zeros((4, 2, 8, 1 << 16, 64), torch.bfloat16, CPU)
    assert pool.numel() * 2 == GIB // 2
    assert resident() - before < 16 << 20
    pool[0, 0, 0, :100] = 1
    assert pool[0, 0, 0, :101].float().sum() == 6400
