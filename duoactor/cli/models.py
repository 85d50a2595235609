"""Commands about the models on this machine: fetch one, list them, and see which are served."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from actors.settings import PEER_VARIABLES
from duoactor import render
from duoactor.cli.environment import Environment
from duoactor.cli.options import Command, json_option
from duoactor.embedded import ON_THE_HUB, SMALL, packaged
from protocols.address import default_address, parse
from protocols.errors import ConfigError, DuoactorError
from protocols.messages import StatusReport

QUANTISATION = re.compile(r"(?:^|[-._])((?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|B?F16|F32))\.gguf$", re.IGNORECASE)
PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")  # one of a file's several parts
WRITES = re.compile(r"CausalLM|ConditionalGeneration|LMHead")  # parts of the names of architectures


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model on this machine, by the name that ``--target`` and ``--draft`` take."""

    model: str
    bytes: int
    format: str


@click.command(cls=Command)
@click.argument("model")
@json_option
def pull(model: str, as_json: bool) -> None:
    """Download MODEL from the hub.

    Files that are in the cache already are not fetched again.

    \b
    Example:  duoactor pull HuggingFaceTB/SmolLM2-135M-Instruct
              duoactor pull unsloth/Qwen3-4B-GGUF:Q4_K_M
    """
    from actors.engines.weights.gguf_names import find_gguf, is_gguf
    from actors.engines.weights.hub import located

    if Path(model).exists():
        raise ConfigError(f"{model} is here already: `duoactor up --target {model}`")
    path = find_gguf(model) if is_gguf(model) else Path(located(model))
    if not path.exists():
        raise ConfigError(f"{model!r} is no hub id: give OWNER/NAME, such as {ON_THE_HUB}")
    render.print_done({"model": model, "path": str(path)}, f"{path}\nTry: duoactor up {model}", as_json)


@click.command("list", cls=Command)
@json_option
def list_models(as_json: bool) -> None:
    """List the models in the hub's cache, and the one of a package.

    Only targets and drafts are listed, by the names that --target and --draft take.

    \b
    Example:  duoactor list
    """
    found = sorted([*cached(), *installed()], key=lambda one: one.model.lower())
    if as_json:
        render.print_json(found)
    elif not found:
        print("no models in the hub's cache: `duoactor pull MODEL` fetches one", flush=True)
    else:
        made = render.table("model", ">size", "format")
        for one in found:
            made.add_row(one.model, f"{one.bytes / 1e9:.2f} GB", one.format)
        render.print_table(made)


@click.command(cls=Command)
@json_option
@click.pass_obj
def ps(environment: Environment, /, as_json: bool) -> None:
    """List your running verifiers.

    Looks at the default address and at DUOACTOR_CONNECT.

    \b
    Example:  duoactor ps
    """
    found = {address: report for address in _addresses() if (report := _status(environment, address)) is not None}
    if as_json:
        render.print_json([{"address": address, "status": report} for address, report in found.items()])
    elif not found:
        print("nothing runs: `duoactor up` starts a verifier", flush=True)
    else:
        made = render.table("target", "method", ">requests", ">drafters", ">pid", "up for", "address")
        for address, one in found.items():
            counts = str(len(one.requests)), str(len(one.drafters)), str(one.verifier.pid)
            name = render.model_name(one.target.model_id)
            made.add_row(name, one.method, *counts, render.duration(one.uptime_ms), address)
        render.print_table(made)


def cached() -> Iterator[CachedModel]:
    """The newest revision of each model in the hub's cache."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repo in repos:
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda one: one.last_modified)
        sizes = {file.file_name: file.size_on_disk for file in newest.files}
        files = Counter[str]()
        for name, size in sizes.items():
            if name.endswith(".gguf") and "mmproj" not in name:
                files[PART.sub("", name)] += size
        for name, size in files.items():
            kind = _quantisation(name)
            yield CachedModel(f"{repo.repo_id}:{kind or name}", size, f"GGUF {kind}".strip())
        weights = sum(size for name, size in sizes.items() if name.endswith((".safetensors", ".bin")))
        if weights and (kind := _format(newest.snapshot_path / "config.json")):
            yield CachedModel(repo.repo_id, weights, kind)


def installed() -> Iterator[CachedModel]:
    """The small model that a package brings, if it is installed."""
    if (file := packaged()) is not None:
        yield CachedModel(SMALL, file.stat().st_size, f"GGUF {_quantisation(file.name)}".strip())


def _quantisation(name: str) -> str:
    return found[1] if (found := QUANTISATION.search(name)) else ""


def _format(config: Path) -> str:
    """The format of a checkpoint's weights; "" if the model does not write text."""
    try:
        said = json.loads(config.read_text())
        if not WRITES.search(" ".join(said.get("architectures") or ())):
            return ""
        quantised = (said.get("quantization_config") or {}).get("quant_method")
        return str(quantised or said.get("dtype") or said.get("torch_dtype") or "float32")
    except (OSError, ValueError, AttributeError, TypeError):
        return ""


def _addresses() -> list[str]:
    """Possible addresses of this user's verifiers."""
    home = parse(default_address()).path.parent
    named = os.environ.get(PEER_VARIABLES["connect"], "")
    return [*([named] if named else []), *(f"ipc://{path}" for path in sorted(home.glob("*.ipc")))]


def _status(environment: Environment, address: str) -> StatusReport | None:
    """A verifier's status; None: no answer."""
    try:
        with environment.connect(address, "", "") as client:
            return client.status()
    except DuoactorError:
        return None
