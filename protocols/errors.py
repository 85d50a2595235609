"""One exception family for the whole product; every message is one sentence that says what to do."""

from __future__ import annotations


class DuoactorError(Exception):
    """Base of every error that duoactor raises on purpose."""


class ProtocolError(DuoactorError):
    """A peer sent something that is not this protocol: bad magic, wrong version, undecodable body."""


class RefusedError(DuoactorError):
    """The verifier refused this peer at Hello; ``code`` is one of :class:`protocols.messages.RefuseCode`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class RequestError(DuoactorError):
    """A request failed or was refused; ``code`` is one of :class:`protocols.messages.FailureCode`."""

    def __init__(self, code: str, detail: str, retry_after_ms: float = 0.0) -> None:
        """``retry_after_ms``: of a request refused as ``overloaded``, until there should be room; 0: not known."""
        super().__init__(detail)
        self.code = code
        self.retry_after_ms = retry_after_ms


class ConnectionLost(DuoactorError):
    """The connection is closed or denied, or there is no answer at the address."""


class ConfigError(DuoactorError):
    """An option has a value that cannot work, alone or together with another."""


class ModelError(DuoactorError):
    """A model or tokenizer cannot be loaded, or two of them do not fit together."""


class PoolFull(DuoactorError):
    """The KV pool has no room at present; the request has to wait until another ends."""


class CannotDraft(DuoactorError):
    """The draft model cannot mirror this text: a token beyond its vocabulary, or more tokens than its context holds.

    The request goes on without its drafts.
    """
