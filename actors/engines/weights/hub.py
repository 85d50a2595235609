"""Where the files of a hub id lie on this machine."""

from __future__ import annotations

import functools
import logging
import re
from pathlib import Path

from protocols.errors import ModelError

log = logging.getLogger("duoactor")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
REACH_S = 4.0  # a hub that does not answer by then counts as out of reach
FILES = ("*.json", "*.jinja", "*.txt", "*.model")
UNUSED = ("*/*", "consolidated*")  # exports for other programs, and second copies of the weights


@functools.cache
def located(name: str) -> str:
    """The directory of a model: of a hub id the snapshot in the hub's cache, after what is missing was downloaded.

    The hub is asked once: with a full cache and no network a model is served from the cache. Names that are no hub ids
    stay as they are. Raises ModelError.
    """
    if Path(name).exists() or name.startswith(".") or not HUB_ID.fullmatch(name):
        return name
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    unknown = ModelError(
        f"model {name!r} is neither a directory here nor a hub id that can be reached; "
        "check the name and the network, or give a local directory"
    )
    try:
        cached = snapshot_download(name, local_files_only=True)
    except Exception:
        cached = ""
    if constants.HF_HUB_OFFLINE:
        if cached:
            return cached
        raise unknown
    try:
        info = HfApi().model_info(name, timeout=REACH_S)
    except GatedRepoError:
        raise ModelError(
            f"model {name} asks for its terms to be accepted: do that on its page at the hub, then `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise unknown from None
    except Exception:
        if not cached:
            raise unknown from None
        log.info("the hub cannot be reached: %s is the copy in its cache", name)
        return cached
    files = {file.rfilename for file in info.siblings or ()}
    weights = "*.safetensors" if any(file.endswith(".safetensors") and "/" not in file for file in files) else "*.bin"
    try:
        return snapshot_download(
            name, revision=info.sha, allow_patterns=[*FILES, weights], ignore_patterns=list(UNUSED)
        )
    except Exception as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelError(f"model {name} cannot be downloaded: {first[0]}") from None
