"""What waits for an actor is bounded in number and in bytes."""

from protocols import transport
from protocols.transport import Backlog, size_of


def test_an_inbox_takes_no_more_than_so_many_bytes(monkeypatch):
    monkeypatch.setattr(transport, "INBOX_BYTES", 100)
    inbox: Backlog[list[bytes]] = Backlog(1000, size_of)
    assert inbox.put([b"x" * 40, b""]) and inbox.put([b"x" * 70]), "an item is taken whatever its size"
    assert inbox.full and not inbox.put([b""]) and not inbox.half_empty
    assert inbox.get_nowait() == [b"x" * 40, b""]
    assert not inbox.full and not inbox.half_empty
    inbox.get_nowait()
    assert inbox.half_empty and inbox.put([b"x" * 1000])


def test_an_inbox_takes_no_more_than_so_many_items():
    inbox: Backlog[int] = Backlog(2)
    assert inbox.put(1) and inbox.put(2) and not inbox.put(3)
    assert inbox.get_nowait() == 1 and inbox.half_empty
