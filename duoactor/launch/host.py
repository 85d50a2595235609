"""One actor of a cluster, on the node where Ray has placed it: its process, and how others find it.

The class is made a Ray actor by :mod:`duoactor.ray`; nothing here needs Ray but a verifier's address. A host lives as
long as its process: when that dies the host ends, too, and Ray starts both anew, on this node or another.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from actors.files import whole_file
from actors.settings import KeySettings
from duoactor.client.connection import FILE
from duoactor.launch.child import GATEWAY, STOP_S, ActorPlan, Child, own_command
from duoactor.launch.deployment import flags, secrets
from duoactor.launch.issue_keys import VERIFIER, KeyFiles
from duoactor.launch.members import Member
from duoactor.launch.restart import ASKED, LONGEST_DELAY_S, REFUSED, describe_exit
from protocols.address import Address
from protocols.messages import Role
from protocols.security import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyRole

Find = Callable[[str], Awaitable[str]]  # the verifier's address, once it is another than the one given


class Places:
    """Files with the verifiers' present addresses, for ``--connect file://PATH``, while it is entered.

    Clients and gateways outlive the place of their verifier: they read its file again when that changes."""

    def __init__(self, directory: str, finds: Sequence[Find]) -> None:
        self._files = {Path(directory) / f"verifier-{number}": find for number, find in enumerate(finds, 1)}
        self.addresses = tuple(f"{FILE}{file}" for file in self._files)
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Places:
        self._following = [asyncio.create_task(_follow(file, find)) for file, find in self._files.items()]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)


async def _follow(file: Path, find: Find) -> None:
    address = ""
    while True:
        address = await find(address)
        with whole_file(file) as fresh:
            fresh.write(address.encode())


class Host:
    """``find``: the addresses of the verifiers that ``member`` connects to; ``clients``: keys that a verifier's host
    gives to whoever asks. Every method is a call that others make through Ray."""

    def __init__(
        self,
        member: Member,
        keys: KeyFiles,
        find: Sequence[Find] = (),
        clients: KeyFiles | None = None,
        log_flags: Sequence[str] = (),
    ) -> None:
        self._member = member
        self._keys = keys
        self._find = find
        self._clients = clients
        self._log_flags = log_flags
        self._address = ""
        self._placed = asyncio.Event()
        self._sentence = ""
        self._failed = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep())

    def __repr__(self) -> str:
        return self._member.name  # before the lines that Ray shows of us

    # --- calls

    async def role(self) -> str:
        return str(self._member.role)

    async def describe(self) -> dict[str, str]:
        """Its line in ``duoactor up``."""
        settings = self._member.settings
        model = getattr(settings, "target", "") or getattr(settings, "draft", "")
        return {"role": str(self._member.role), "actor_id": self._member.name, "node": _node_ip(), "model": model}

    async def address(self, but: str) -> str:
        """The verifier's address, once it is another than ``but``. Ray repeats a call that waits when
        we have a successor, and that one's address is the answer."""
        await self._placed.wait()
        if self._address == but:
            await asyncio.Event().wait()
        return self._address

    async def keys(self) -> KeyFiles | None:
        """An operator's: for clients on the cluster."""
        return self._clients

    async def failure(self) -> str:
        """The sentence of a process that cannot run, once there is one."""
        await self._failed.wait()
        return self._sentence

    async def stop(self) -> None:
        """End the process in order."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    # --- its life

    async def _keep(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="duoactor-") as directory:
                self._keys.write(directory)
                code = await self._run(directory)
        except Exception:
            traceback.print_exc()
            os._exit(1)
        if code in ASKED:
            return  # it was drained, or asked to stop: it stays away
        print(f"{describe_exit(code)}{f': {self._sentence}' if self._sentence else ''}", flush=True)
        if code in REFUSED and self._sentence:
            self._failed.set()
            await asyncio.sleep(LONGEST_DELAY_S)  # starting it again at once would not help
        os._exit(1)

    async def _run(self, directory: str) -> int:
        """One life of the process, or with every place of its verifier another; the exit code of the last."""
        if self._member.role is Role.VERIFIER:
            self._address = str(Address("tcp", host=_node_ip(), port=_free_port()))
            self._placed.set()
            key = str(Path(directory) / (VERIFIER + SECRET_SUFFIX))
            return await self._live(bind=self._address, key=key, allow=directory)
        role = KeyRole.OPERATOR if self._member.role == GATEWAY else KeyRole(str(self._member.role))
        keys = {
            "key": str(Path(directory) / (role + SECRET_SUFFIX)),
            "server_key": str(Path(directory) / (VERIFIER + PUBLIC_SUFFIX)),
        }
        if self._member.role == GATEWAY:  # HTTP streams go on while a verifier moves
            async with Places(directory, self._find) as places:
                return await self._live(connect=places.addresses, **keys)
        return await self._follow(keys)

    async def _follow(self, keys: dict[str, str]) -> int:
        (find,) = self._find
        address = await find("")
        while True:
            living = asyncio.create_task(self._live(connect=address, **keys))
            moving = asyncio.ensure_future(find(address))
            try:
                await asyncio.wait({living, moving}, return_when=asyncio.FIRST_COMPLETED)
                if living.done():
                    return living.result()
                address = moving.result()
            finally:
                moving.cancel()
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)

    async def _live(self, **places: object) -> int:
        settings: KeySettings = msgspec.structs.replace(self._member.settings, **places)
        command = "serve" if self._member.role == GATEWAY else str(self._member.role)
        plan = ActorPlan(
            self._member.role,
            self._member.name,
            own_command(command, "--supervised", *self._log_flags, *flags(settings)),
            self._member.threads,
            secrets=secrets(settings),
        )
        child = await Child.start(plan, _say, _ignore)
        ending = asyncio.create_task(child.wait())
        try:
            return await asyncio.shield(ending)
        finally:
            if not ending.done():
                child.terminate()
                await asyncio.wait([ending], timeout=STOP_S + getattr(settings, "shutdown_timeout", 0.0))
                child.kill()
                await ending
            self._sentence = child.sentence


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ignore(progress: str) -> None: ...


def _node_ip() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
