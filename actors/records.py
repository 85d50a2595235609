"""Finished requests, as a verifier logs them (:mod:`actors.request_log`) and as replay and learner read them.

Noise is keyed by seed and position. So a text with its seed tells what any draft would have proposed at each place, and
the target need not run again. On disk a request is one line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocols.errors import ConfigError
from protocols.limits import Label, TokenId
from protocols.messages import FinishReason, Sampling

Ids = Annotated[tuple[TokenId, ...], Meta(min_length=1)]
DEFAULTS = msgspec.structs.asdict(Sampling())


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``text``: the whole output, with the token that ended it. ``task``: where it is known, as in a benchmark;
    a verifier does not."""

    prompt: Ids
    text: Ids
    sampling: Sampling = Sampling()
    finish_reason: FinishReason | None = None
    model_id: Label = ""
    tokenizer: Label = ""  # digest of the target's tokenizer; empty: a log of before it was noted
    task: Label = ""


def encoded(request: LoggedRequest) -> bytes:
    """One line. Of the sampling parameters the non-default ones, by name."""
    named = {name: value for name, value in msgspec.structs.asdict(request.sampling).items() if value != DEFAULTS[name]}
    return msgspec.json.encode({**msgspec.to_builtins(request), "sampling": named}) + b"\n"


def decoded(line: bytes) -> LoggedRequest:
    """Raises ``msgspec.MsgspecError`` for what is no logged request."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (UnicodeDecodeError, RecursionError) as error:  # text that is none, and nested as deep as no request is
        raise msgspec.DecodeError(str(error)) from None
    named = msgspec.convert(fields.get("sampling", {}), dict[str, Any])
    if unknown := named.keys() - DEFAULTS.keys():  # they would change which token the target chose
        raise msgspec.ValidationError(f"unknown sampling parameter {min(unknown)}")
    fields["sampling"] = [named.get(name, default) for name, default in DEFAULTS.items()]
    return msgspec.convert(fields, LoggedRequest)


def read_log(file: str | Path) -> Iterator[LoggedRequest]:
    """The requests of a file, in order. A last line that was cut off is left out; ConfigError in one sentence."""
    try:
        with Path(file).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield decoded(line)
                except msgspec.MsgspecError as error:
                    if line.endswith(b"\n"):
                        raise ConfigError(
                            f"line {number} of {file} is no logged request ({error}): give a file that "
                            "`duoactor up --log-requests` wrote"
                        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): give a log of requests") from None
