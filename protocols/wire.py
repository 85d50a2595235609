"""Frames: a message is two of them, ``duoactor/4`` and a MessagePack body. See ``SPEC.md`` section 2."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any

import msgspec

from protocols.errors import ProtocolError
from protocols.limits import MAX_REQUEST_ID
from protocols.messages import Detokenize, DrainActor, Generate, Message, Status, Swap, Tokenize, Undo

PROTOCOL = 4
MAGIC = b"duoactor/"
HEADER = MAGIC + str(PROTOCOL).encode()
FRAMES = 2
MAX_BYTES = 64 * 1024 * 1024  # both frames together

_QUESTIONS = {one.__name__ for one in (Generate, Status, Tokenize, Detokenize, Swap, DrainActor, Undo)}
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> list[bytes]:
    """Return the frames of ``message``. Raises ProtocolError if it is larger than receivers accept."""
    body = _encoder.encode(message)
    _check_size(len(HEADER) + len(body))
    return [HEADER, body]


def kind(frames: Sequence[bytes]) -> str:
    """Return the class name in ``frames`` without decoding the rest, or "" if there is none."""
    return _first_strings(frames)[0]


def request_id(frames: Sequence[bytes]) -> str | None:
    """Return the ``rid`` of a request or question, also where the rest cannot be decoded; None: it has none."""
    name, rid = _first_strings(frames)
    return rid if name in _QUESTIONS and rid is not None and len(rid) <= MAX_REQUEST_ID else None


def _first_strings(frames: Sequence[bytes]) -> tuple[str, str | None]:
    """The name of a message, and its first field if that is a string of at most 255 bytes.

    The MessagePack is read by hand because the frames may be malformed after that."""
    if len(frames) != FRAMES or frames[0] != HEADER:  # what another version means by its body is not known
        return "", None
    body = frames[1]
    # an array header of 1, 3 or 5 bytes, then a string of at most 31 bytes: the only form of a Message's tag
    start = {0xDC: 3, 0xDD: 5}.get(body[0], 1) if body else 0
    if len(body) <= start or body[start] & 0xE0 != 0xA0:
        return "", None
    end = start + 1 + (body[start] & 0x1F)
    name = body[start + 1 : end].decode("ascii", "replace")
    if len(body) > end + 1 and body[end] == 0xD9:  # a string with a length of one byte
        first = body[end + 2 : end + 2 + body[end + 1]]
    elif len(body) > end and body[end] & 0xE0 == 0xA0:
        first = body[end + 1 : end + 1 + (body[end] & 0x1F)]
    else:
        return name, None
    try:
        return name, first.decode()
    except UnicodeDecodeError:
        return name, None


def is_other_version(frames: Sequence[bytes]) -> bool:
    """Whether the first frame names another version of this protocol."""
    version = frames[0].removeprefix(MAGIC) if frames else b""
    return bool(frames) and frames[0] != HEADER and frames[0].startswith(MAGIC) and version.isdigit()


def is_foreign(frames: Sequence[bytes]) -> bool:
    """Whether the first frame names another version of this protocol, or another protocol."""
    return not frames or frames[0] != HEADER


class Decoder:
    """Decodes the messages that one receiver understands, such as ``Decoder(ToVerifier)``."""

    def __init__(self, union: Any) -> None:
        self._body = msgspec.msgpack.Decoder(union)
        self._kinds = {one.__name__: one for one in typing.get_args(union) or (union,)}

    def decode(self, frames: Sequence[bytes]) -> Message:
        """Return the message in ``frames``. Raises ProtocolError with a sentence, whatever the bytes are."""
        if len(frames) != FRAMES:
            raise ProtocolError(f"a message has {FRAMES} frames; this one has {len(frames)}")
        header, body = frames
        if header != HEADER:
            raise ProtocolError(_header_fault(header))
        _check_size(len(header) + len(body))
        try:
            message: Message = self._body.decode(body)
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise ProtocolError(f"the body of a message cannot be decoded: {self._reason(error, frames)}") from error
        except RecursionError as error:
            raise ProtocolError("the body of a message cannot be decoded: it is nested too deeply") from error
        return message

    def _reason(self, error: Exception, frames: Sequence[bytes]) -> str:
        """msgspec's error, with the names of message and field instead of its path of array indices."""
        found = re.fullmatch(r"(.+) - at `\$((?:\[\d+\])+).*`", str(error))
        kind = self._kinds.get(_first_strings(frames)[0])
        if found is None or kind is None:
            return str(error)
        name = kind.__name__
        first, *rest = (int(at) for at in re.findall(r"\d+", found[2]))
        for at in (first - 1, *rest):  # the name of the message is element 0
            fields = kind.__struct_fields__ if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
            name += f".{fields[at]}" if at < len(fields) else f"[{at}]"
            kind = typing.get_type_hints(kind).get(fields[at]) if at < len(fields) else None
        return f"{name}: {found[1][0].lower()}{found[1][1:]}"


def _header_fault(header: bytes) -> str:
    version = header.removeprefix(MAGIC)
    if not header.startswith(MAGIC) or not version.isdigit() or len(version) > 5:
        return "the first frame is not duoactor's; check that both ends run duoactor and that the address is right"
    return (
        f"the peer speaks protocol version {int(version)} and this side version {PROTOCOL}; "
        "install the same version of duoactor on both"
    )


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ProtocolError(f"a message of {size} bytes is over the limit of {MAX_BYTES} (64 MiB)")
