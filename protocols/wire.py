"""Frames: a message is two of them, ``duoactor/1`` and a MessagePack body. See ``SPEC.md`` section 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from protocols.errors import ProtocolError
from protocols.messages import Message

PROTOCOL = 1
MAGIC = b"duoactor/"
HEADER = MAGIC + str(PROTOCOL).encode()
FRAMES = 2
MAX_BYTES = 64 * 1024 * 1024  # both frames together

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> list[bytes]:
    """Return the frames of ``message``. Raises ProtocolError if it is too large for any receiver to accept."""
    body = _encoder.encode(message)
    _check_size(len(HEADER) + len(body))
    return [HEADER, body]


def kind(frames: Sequence[bytes]) -> str:
    """Return the class name in ``frames`` without decoding the rest, or "" if there is none."""
    if len(frames) != FRAMES or not frames[0].startswith(MAGIC):
        return ""
    body = frames[1]
    # an array header of 1, 3 or 5 bytes, then a short string: all that Message's tag can look like
    start = {0xDC: 3, 0xDD: 5}.get(body[0], 1) if body else 0
    if len(body) <= start or body[start] & 0xE0 != 0xA0:
        return ""
    return body[start + 1 : start + 1 + (body[start] & 0x1F)].decode("ascii", "replace")


def is_foreign(frames: Sequence[bytes]) -> bool:
    """Whether the sender speaks another version of the protocol, or none at all."""
    return not frames or frames[0] != HEADER


class Decoder:
    """Decodes the messages that one kind of receiver understands, such as ``Decoder(ToVerifier)``."""

    def __init__(self, union: Any) -> None:
        self._body = msgspec.msgpack.Decoder(union)

    def decode(self, frames: Sequence[bytes]) -> Message:
        """Return the message in ``frames``. Raises ProtocolError, one sentence, whatever the bytes are."""
        if len(frames) != FRAMES:
            raise ProtocolError(f"A message has {FRAMES} frames; this one has {len(frames)}.")
        header, body = frames
        if header != HEADER:
            raise ProtocolError(_header_fault(header))
        _check_size(len(header) + len(body))
        try:
            message: Message = self._body.decode(body)
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise ProtocolError(f"The body of a message cannot be decoded: {error}.") from error
        except RecursionError as error:
            raise ProtocolError("The body of a message cannot be decoded: it is nested too deeply.") from error
        return message


def _header_fault(header: bytes) -> str:
    version = header.removeprefix(MAGIC)
    if not header.startswith(MAGIC) or not version.isdigit() or len(version) > 5:
        return "The first frame is not duoactor's; check that both ends run duoactor and that the address is right."
    return (
        f"The peer speaks protocol version {int(version)} and this side version {PROTOCOL}; "
        "install the same version of duoactor on both."
    )


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ProtocolError(f"A message of {size} bytes is over the limit of {MAX_BYTES} (64 MiB).")
