"""Frames that are not of this protocol, from whoever is at the other end of a peer's connection."""

import itertools

import pytest

from actors.peer import Line
from protocols import wire
from protocols.errors import ProtocolError
from protocols.handshake import PASSING_S
from protocols.messages import Heartbeat, Hello, Refuse, RefuseCode, Role, ToController, Welcome
from tests.world.caller import ADDRESS
from tests.world.network import MemoryNetwork

WELCOME = Welcome("v", 500, 2500, "")
NOT_OURS = ([b"HTTP/1.1 400", b""], [b"", wire.HEADER, b"\x91"], [b"duoactor/", b"x"])


async def met(*said: list[bytes], seconds: float = 0.0) -> Line:
    """A controller that has heard these frames, one after the other, with so much time between them."""
    now = itertools.count(0.0, seconds)
    network = MemoryNetwork()
    listener = network.listen(ADDRESS)
    line = Line(network, ADDRESS, Hello(Role.CONTROLLER, "c", "1"), wire.Decoder(ToController), lambda: next(now))
    line.send(Heartbeat())
    [peer] = listener.peers
    for frames in said:
        listener.send(peer, frames)
    while line.next_nowait() is not None:
        pass
    return line


FORGOTTEN = wire.encode(Refuse(RefuseCode.UNKNOWN_PEER, ""))


@pytest.mark.parametrize("frames", NOT_OURS)
async def test_where_nothing_else_comes_before_the_first_welcome_something_else_listens_there(frames):
    with pytest.raises(ProtocolError, match=r"address is right|has 3"):
        await met(frames, frames, frames, seconds=PASSING_S / 2)


@pytest.mark.parametrize("frames", NOT_OURS)
async def test_a_frame_that_was_garbled_before_the_first_welcome_ends_nobody(frames):
    line = await met(frames, frames, wire.encode(WELCOME))
    assert line.known and line.malformed == 2


@pytest.mark.parametrize("frames", NOT_OURS)
async def test_from_a_verifier_that_has_forgotten_us_they_are_one_malformed_message_more(frames):
    line = await met(wire.encode(WELCOME), FORGOTTEN, frames, wire.encode(WELCOME))
    assert line.known and line.malformed == 1


async def test_a_verifier_that_came_back_with_another_version_is_told_from_one_that_says_nonsense():
    with pytest.raises(ProtocolError, match="version 9"):
        await met(wire.encode(WELCOME), FORGOTTEN, [b"duoactor/9", b"\x91"])
