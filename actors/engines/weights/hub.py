"""The place of a hub id's files on this machine."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protocols.errors import ModelError

log = logging.getLogger("duoactor")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
REACH_S = 4.0  # a hub that does not answer by then counts as out of reach
FILES = ("*.json", "*.jinja", "*.txt", "*.model")
WEIGHTS = (".safetensors", ".bin")  # the first that a repository has
UNUSED = ("*/*", "consolidated*")  # exports for other programs, and second copies of the weights


@functools.cache
def located(name: str) -> str:
    """The directory of a model: of a hub id the snapshot in the hub's cache, after what is missing was downloaded.

    The hub is asked once: with a full cache and no network a model is served from the cache. Names that are no hub ids
    stay as they are. Raises ModelError.
    """
    if Path(name).exists() or name.startswith(".") or not HUB_ID.fullmatch(name):
        return name
    from huggingface_hub import constants, snapshot_download

    cached = snapshot(name)
    if cached is not None and not any(cached.glob(f"*{kind}") for kind in WEIGHTS):
        cached = None
    files = files_of(name, unknown(name))
    if files is None:
        if cached is None:
            raise unknown(name)
        if not constants.HF_HUB_OFFLINE:
            log.info("the hub cannot be reached: %s is the copy in its cache", name)
        return str(cached)
    kind = next((one for one in WEIGHTS if any(file.endswith(one) and "/" not in file for file in files)), None)
    if kind is None:
        quantised = ", ".join(file for file in files if file.endswith(".gguf"))
        there = f"GGUF files: name one, as in {name}:Q4_K_M; it has {quantised}" if quantised else "no weights"
        raise ModelError(f"repository {name} has {there}")
    if cached is None:
        log.info("downloading %s from the hub", name)
    wanted = [*FILES, f"*{kind}"]
    try:
        with bar(name) as shown:
            return snapshot_download(name, allow_patterns=wanted, ignore_patterns=list(UNUSED), tqdm_class=shown)
    except Exception as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelError(f"model {name} cannot be downloaded: {first[0]}") from None


def check_known(name: str) -> None:
    """Raise ModelError if neither this machine nor a reachable hub has the model ``name``. Nothing is downloaded."""
    repo = name.partition(":")[0]  # name without its quantisation
    if Path(name).exists():
        return
    if not HUB_ID.fullmatch(repo) or (snapshot(repo) is None and files_of(repo, unknown(name)) is None):
        raise unknown(name)


def unknown(name: str) -> ModelError:
    return ModelError(
        f"model {name!r} is neither a directory here nor a hub id that can be reached; "
        "check the name and the network, or give a local directory"
    )


def snapshot(repo: str) -> Path | None:
    """The directory of what the hub's cache holds of a repository.

    By the cache's layout: huggingface_hub does not give a directory without the files that were left out."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        found = place / "snapshots" / (place / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return found if found.is_dir() else None


def files_of(repo: str, unknown: ModelError) -> list[str] | None:
    """The files of a hub's repository; None: the hub is out of reach. Raises ``unknown`` if there is no such one."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        return sorted(file.rfilename for file in HfApi().model_info(repo, timeout=REACH_S).siblings or ())
    except GatedRepoError:
        raise ModelError(
            f"model {repo} asks for its terms to be accepted: do that on its page at the hub, then `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise unknown from None
    except Exception:
        return None


@contextmanager
def bar(name: str) -> Iterator[type[Any]]:
    """A class of the hub's kind of progress bars: one line that replaces itself says how much of a model is here.

    In a pipe it shows nothing, unless that is a supervisor's.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars, tqdm

    terminal, supervised = sys.stderr.isatty(), os.environ.get("TQDM_POSITION") == "-1"
    if not terminal and not supervised:
        disable_progress_bars()
    begin, clear = ("\r\x1b[K", "\r\x1b[K") if terminal else ("\r", "\r \n" if supervised else "")

    class Bar(tqdm):
        """The hub's library draws several: of files, of bytes received, and of bytes on disk, which alone is shown."""

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            if msg is None and self.unit == "B" and self.total and not self.desc.startswith("Downloading bytes"):
                text = f"downloading {name}: {self.n / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
                print(begin, text, sep="", end="", file=sys.stderr, flush=True)

        def close(self) -> None:
            self.disable = True

    try:
        yield Bar
    finally:
        print(clear, end="", file=sys.stderr, flush=True)
