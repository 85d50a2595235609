"""Who owns what a request leaves: keys and values, texts in the memory, drafters' mirrors, lessons, log lines.

A gateway is one client; it tells its API keys apart by salts. An ordinary salt parts the requests of one connection's
key and reaches no other key's, so that nobody gains by guessing one. A salt that begins with ``share:`` is a secret
that requests of several keys share by, see :mod:`protocols.validation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from protocols.validation import SHARED_SALT

EVERYBODY = ""  # the scope of requests without a key and without a salt


@dataclass(frozen=True, slots=True)
class Owner:
    """The caller of a request, among whose requests a ``priority`` counts."""

    key: bytes = b""  # authenticated, of the connection; empty: this verifier has no keys
    salt: str = ""

    def scope(self, everybodys: bool = False) -> str:
        """Label of the requests that may use what this one leaves. No salt and no key can be read from it.
        ``everybodys``: the operator has the requests of all keys share."""
        key = b"" if everybodys or self.salt.startswith(SHARED_SALT) else self.key
        if not key and not self.salt:
            return EVERYBODY
        return blake2b(self.salt.encode(), key=key, digest_size=16).hexdigest()


NOBODY = Owner()
