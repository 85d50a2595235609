"""Finds a model's GGUF file: a path, or a hub's repository with the name of a quantisation."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from actors.engines.weights.gguf import PART
from actors.engines.weights.hub import bar, files_of, snapshot
from protocols.errors import ModelError

log = logging.getLogger("duoactor")
SUFFIX = ".gguf"
# As llama.cpp and ollama write it: user/repo:Q4_K_M
HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<kind>[\w.-]+)")


def is_gguf(name: str) -> bool:
    """Whether a model's name means a GGUF file."""
    return name.endswith(SUFFIX) or (HUB.fullmatch(name) is not None and not Path(name).exists())


def find_gguf(name: str) -> Path:
    """The (first) file of a model, downloaded if it is not here. Raises ModelError."""
    match = None if Path(name).exists() else HUB.fullmatch(name)
    if match is None:
        path = Path(os.path.expanduser(name))  # leaves ~NAME where there is no such user
        if not path.is_file():
            raise ModelError(f"GGUF file {name} does not exist; check the path")
        return path
    return _from_hub(match["repo"], match["kind"])


def _from_hub(repo: str, kind: str) -> Path:
    from huggingface_hub import hf_hub_download

    unknown = ModelError(f"the hub's repository {repo} cannot be reached and is not in the cache; check the name")
    files = files_of(repo, unknown)
    if files is None:
        local = snapshot(repo)
        if local is None:
            raise unknown
        return local / choose(repo, kind, [str(path.relative_to(local)) for path in local.rglob(f"*{SUFFIX}")])
    chosen = choose(repo, kind, files)
    if (found := snapshot(repo)) is None or not (found / chosen).exists():
        log.info("downloading %s of %s from the hub", chosen, repo)
    try:
        with bar(f"{repo}:{kind}") as shown:
            first, *_ = [Path(hf_hub_download(repo, part, tqdm_class=shown)) for part in _parts(chosen, files)]
        return first
    except Exception as error:
        raise ModelError(f"{chosen} of {repo} cannot be downloaded: {str(error).splitlines()[0]}") from None


def choose(repo: str, kind: str, files: list[str]) -> str:
    """The file of a quantisation, the first part of a split one. Raises ModelError that names the files."""
    models = sorted(f for f in files if f.endswith(SUFFIX) and "mmproj" not in f)
    wanted = re.compile(rf"(^|[-._/]){re.escape(kind)}([-./]|$)", re.IGNORECASE)
    found = [f for f in models if wanted.search(f.removesuffix(SUFFIX))]
    if not found:
        there = ", ".join(models) or "no GGUF file"
        raise ModelError(f"repository {repo} has no file of {kind}; it has {there}")
    return found[0]


def _parts(chosen: str, files: list[str]) -> list[str]:
    match = PART.match(chosen)
    if match is None:
        return [chosen]
    return sorted(f for f in files if (other := PART.match(f)) and other["stem"] == match["stem"])
