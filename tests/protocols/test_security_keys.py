"""Key files: private where they must be, and every mistake told in a sentence."""

from __future__ import annotations

import io
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from protocols.errors import ConfigError
from protocols.security import Holder, KeyPair, KeyRole, load_security, read_key


def test_a_written_pair_is_read_back_and_only_the_public_half_is_public(tmp_path: Path) -> None:
    pair = KeyPair.generate()
    secret, public = pair.write(tmp_path / "keys", "verifier")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    security = load_security(secret, public)
    assert (security.public_key, security.secret_key, security.server_key) == (pair.public, pair.secret, pair.public)
    assert pair.secret.decode() not in repr(pair) + repr(security)


def test_a_key_file_may_begin_with_an_editors_mark_of_its_encoding(tmp_path: Path) -> None:
    pair = KeyPair.generate()
    secret, public = pair.write(tmp_path, "me")
    for path in (secret, public):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_security(str(secret), str(public)).server_key == pair.public


@pytest.mark.parametrize("half", ["secret", "public"])
def test_of_a_pair_that_the_disk_cannot_hold_nothing_is_left(half: str, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    class Full(io.BytesIO):
        write = full  # type: ignore[assignment]

    with monkeypatch.context() as patched:
        if half == "public":
            patched.setattr(Path, "write_bytes", full)
        else:
            patched.setattr("protocols.security.os.fdopen", lambda handle, mode: Full())
        with pytest.raises(ConfigError, match=r"cannot be written to .* \(No space left on device\): name another"):
            KeyPair.generate().write(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
    KeyPair.generate().write(tmp_path, "a")  # once there is room


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    KeyPair.generate().write(tmp_path, "a")
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        KeyPair.generate().write(tmp_path, "a")
    assert (tmp_path / "a.key").read_bytes() == before
    with pytest.raises(ConfigError, match="plain name"):
        KeyPair.generate().write(tmp_path, "../a")


def test_a_secret_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret, _ = KeyPair.generate().write(tmp_path, "a")
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_security(secret)


@pytest.mark.parametrize(("owner", "mode", "admitted"), [(0, 0o440, True), (0, 0o460, False), (1000, 0o440, False)])
def test_a_group_may_read_a_secret_key_of_roots(tmp_path: Path, monkeypatch, owner: int, mode: int, admitted: bool):
    """As Kubernetes mounts it for a container that is not root."""
    secret, _ = KeyPair.generate().write(tmp_path, "a")
    status = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 1000, 41, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda path, **options: status)
    with nullcontext() if admitted else pytest.raises(ConfigError, match="chmod 600"):
        load_security(secret)


def test_what_is_missing_or_malformed_is_named(tmp_path: Path) -> None:
    secret, public = KeyPair.generate().write(tmp_path, "a")
    with pytest.raises(ConfigError, match="no secret key file"):
        load_security(tmp_path / "b.key")
    with pytest.raises(ConfigError, match="no public key file"):
        load_security(secret, tmp_path / "b.pub")
    with pytest.raises(ConfigError, match="not a directory"):
        load_security(secret, public, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="needs a key of our own"):
        load_security("", public)
    (tmp_path / "bad.pub").write_text("not a key")
    with pytest.raises(ConfigError, match=r"bad\.pub does not hold a public key"):
        load_security(secret, public, tmp_path)


def test_the_allow_list_is_read_anew_and_holds_our_own_key(tmp_path: Path) -> None:
    secret, _ = KeyPair.generate().write(tmp_path, "verifier")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    security = load_security(secret, allow_dir=allowed)
    assert security.holder(security.public_key).roles == set(KeyRole)
    other = KeyPair.generate()
    assert not security.holder(other.public).roles
    (allowed / "other.pub").write_bytes(other.public)
    assert security.holder(other.public).roles == {KeyRole.CLIENT}
    (allowed / "half-written.pub").write_bytes(other.public[:10])
    assert security.holder(other.public).roles == {KeyRole.CLIENT}
    (allowed / "other.pub").unlink()
    assert not security.holder(other.public).roles


def test_a_handshake_reads_only_what_has_changed_in_the_list(tmp_path: Path, monkeypatch) -> None:
    secret, _ = KeyPair.generate().write(tmp_path, "verifier")
    allowed = tmp_path / "allowed"
    pairs = [KeyPair.generate() for _ in range(20)]
    for number, pair in enumerate(pairs):
        pair.write(allowed, f"peer{number}", [KeyRole.DRAFTER])
    security, read = load_security(secret, allow_dir=allowed), []
    monkeypatch.setattr(
        "protocols.security.read_key", lambda path, half: read.append(path.name) or read_key(path, half)
    )
    for pair in pairs * 3:
        assert security.holder(pair.public).roles == {KeyRole.DRAFTER}
    assert len(read) == len(pairs)
    changed = allowed / "peer7.pub"
    changed.write_bytes(changed.read_bytes().replace(b"drafter", b"learner"))  # same length
    assert security.holder(pairs[7].public).roles == {KeyRole.LEARNER}
    assert read[len(pairs) :] == ["peer7.pub"]
    (allowed / "peer7.pub").unlink()
    assert not security.holder(pairs[7].public).roles
    allowed.rename(tmp_path / "gone")
    assert not security.holder(pairs[1].public).roles


def test_a_key_is_for_the_roles_that_its_file_in_the_list_names(tmp_path: Path) -> None:
    secret, _ = KeyPair.generate().write(tmp_path, "verifier")
    allowed = tmp_path / "allowed"
    pair = KeyPair.generate()
    pair.write(allowed, "laptop", [KeyRole.DRAFTER, KeyRole.OPERATOR])
    security = load_security(secret, allow_dir=allowed)
    holder = security.holder(pair.public)
    assert [role for role in ("client", "drafter", "controller", "learner") if holder.may_be(role)] == [
        "client",
        "drafter",
    ]
    assert holder.watches and not Holder(pair.public, frozenset({KeyRole.CLIENT})).watches
    (allowed / "laptop.pub").write_bytes(pair.public + b"\nking\n")
    assert not security.holder(pair.public).roles
    with pytest.raises(ConfigError, match="names a role that there is not"):
        load_security(secret, allow_dir=allowed)
