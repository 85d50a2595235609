"""Model files with a few changes each: a start ends in tokens or in one sentence, whatever a file says.

``python -m tests.fuzz.model_files gguf --count 10000`` (or ``safetensors``; ``--seed``, ``--first``, ``--workers``).
Each file is loaded and decoded by a child of this process, which has everything imported, so that a start costs a
fraction of a second. What a child may do: end with tokens, or with an error of the product in one sentence. It may not
be killed, raise anything else, take more than ``CPU_S`` seconds of a processor or more than ``MEMORY`` bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from protocols.errors import ConfigError, ModelError, RequestError

CPU_S = 10
MEMORY = 4 << 30  # address space beside that of the warm process
TOKENS, SENTENCE = "tokens", "sentence"
PROMPT = [3, 5, 9, 4, 7]
LONGEST = 1000  # characters of a sentence


@dataclass(frozen=True, slots=True)
class Ending:
    """How a start ended: ``TOKENS``, ``SENTENCE``, or what it must not be; with the words for it."""

    kind: str
    words: str = ""

    @property
    def is_clean(self) -> bool:
        return self.kind in (TOKENS, SENTENCE)


Change = Callable[[Path, random.Random], list[str]]  # a copy's files changed; what was changed


@dataclass(frozen=True, slots=True)
class Corpus:
    """Whole models, and how one is changed. ``starts``: of each; a later one reads what the first kept."""

    seeds: dict[str, Path]
    change: Change
    starts: int = 1


def warm(corpus: Corpus) -> None:
    """Import all that starts need, by starting with every model as it is. No thread is left: children are forked."""
    from actors.engines.decoder.cpu import engine

    engine.memory_bandwidth = lambda threads: 1.0  # gigabytes are read for it
    for seed in corpus.seeds.values():
        start(seed)
    gc.collect()
    gc.freeze()


def start(model: Path) -> None:
    """Load a model as a verifier does, and decode some tokens."""
    from actors.engines.build import EngineOptions, build_target
    from actors.engines.weights.faults import check_checkpoint
    from actors.models import Window
    from protocols.messages import Sampling

    check_checkpoint(str(model))
    target, codec = build_target(str(model), EngineOptions(kv_tokens=512))
    codec.encode("a b\n")
    for sampling in (
        Sampling(max_tokens=4, ignore_eos=True),
        Sampling(max_tokens=3, temperature=0.8, top_p=0.9, seed=5),
    ):
        handle = target.open(PROMPT, sampling)
        while (outcome := target.prefill(handle)) is None:
            pass
        tokens = [*outcome.tokens, *target.verify([Window(handle)])[0].tokens]
        nodes = min(3, target.max_window)
        tokens += target.verify([Window(handle, [6, 7, 8][:nodes], [-1, 0, -1][:nodes])])[0].tokens
        codec.decode(tokens), codec.pieces(tokens)
        target.close(handle)


def ending_of(model: Path, starts: int = 1) -> Ending:
    """The end of a child that starts with that model."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(model, starts, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()
    _, status, used = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return Ending("takes too long", f"{used.ru_utime + used.ru_stime:.0f} s")
        return Ending("signal", signal.Signals(number).name)
    if not sent:
        return Ending("silent end", f"status {os.WEXITSTATUS(status)}")
    ending: Ending = pickle.loads(sent)
    return ending


def _be_child(model: Path, starts: int, write: int) -> None:
    faulthandler.disable()
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (starts * CPU_S, starts * CPU_S + 1))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.environ["DUOACTOR_CACHE"] = str(model.parent / "kept")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1), os.dup2(nothing, 2)
    ending = Ending(TOKENS)
    try:
        for _ in range(starts):
            start(model)
    except (ModelError, ConfigError, RequestError) as error:
        words = str(error)
        ending = Ending(SENTENCE, words)
        if not words or len(words) > LONGEST or "\n" in words or "Traceback" in words:
            ending = Ending("no sentence", words)
    except BaseException as error:
        ending = Ending(type(error).__name__, traceback.format_exc())
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(ending, pipe)
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Trial:
    """One changed model, which its number and the seed make again."""

    number: int
    family: str
    changes: list[str]
    ending: Ending

    def __str__(self) -> str:
        return f"{self.number} ({self.family}; {'; '.join(self.changes)}): {self.ending.kind}: {self.ending.words}"


def trial(corpus: Corpus, seed: int, number: int, directory: Path) -> Trial:
    """Change a model in ``directory`` and start with it."""
    chance = random.Random(f"{seed} {number}")
    family = chance.choice(sorted(corpus.seeds))
    own = directory / f"{number}"
    own.mkdir()
    try:
        model = own / corpus.seeds[family].name
        if corpus.seeds[family].is_dir():
            shutil.copytree(corpus.seeds[family], model)
        else:
            shutil.copyfile(corpus.seeds[family], model)
        changes = corpus.change(model, chance)
        return Trial(number, family, changes, ending_of(model, corpus.starts))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def trials(corpus: Corpus, seed: int, numbers: range, workers: int = 1) -> Iterator[Trial]:
    """The trials with those numbers. Several ``workers`` take turns in waiting for children."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        if workers == 1:
            yield from (trial(corpus, seed, number, directory) for number in numbers)
            return
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        yield from pool.map(lambda number: trial(corpus, seed, number, directory), numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("gguf", "safetensors"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    told = parser.parse_args()
    made: Callable[[Path], Corpus] = importlib.import_module(f"tests.fuzz.changed_{told.kind}").corpus
    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as directory:
        corpus = made(Path(directory))
        warm(corpus)
        endings: Counter[str] = Counter()
        sentences: Counter[str] = Counter()
        with contextlib.suppress(KeyboardInterrupt):  # what was tried until then counts
            for one in trials(corpus, told.seed, range(told.first, told.first + told.count), told.workers):
                endings[one.ending.kind] += 1
                if one.ending.kind == SENTENCE:
                    sentences[" ".join(word for word in one.ending.words.split() if word.isalpha())[:100]] += 1
                if not one.ending.is_clean:
                    print(one, flush=True)
    print(*(f"{count:7} {sentence}" for sentence, count in sentences.most_common(60)), sep="\n")
    print(", ".join(f"{count} {kind}" for kind, count in endings.most_common()))
    sys.exit(any(not Ending(kind).is_clean for kind in endings))


if __name__ == "__main__":
    main()
