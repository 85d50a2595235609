"""The actors of a cluster: their names, who connects to whom, and what each needs of the host that it runs on.

Pure logic; :mod:`duoactor.ray` asks Ray for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import msgspec

from actors.settings import AUTO_DRAFT, ControllerSettings, DrafterSettings, KeySettings, VerifierSettings
from duoactor.config import options
from duoactor.launch.child import GATEWAY
from duoactor.launch.deployment import drafter_names
from duoactor.launch.wanted import Wanted
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError
from protocols.messages import Role

S = TypeVar("S", bound=KeySettings)
DRAFTER_RESOURCE = "duoactor_drafter"  # a node offers as many as the drafters that it is to hold

# what the placement decides, and keys that are made at the start
_DECIDED: Mapping[type[KeySettings], tuple[str, ...]] = {
    VerifierSettings: ("bind", "key", "allow", "cpus", "actor_id"),
    DrafterSettings: ("connect", "key", "server_key", "cpus"),
    ControllerSettings: ("connect", "key", "server_key", "cpus", "actor_id"),
    GatewaySettings: ("connect", "key", "server_key"),
}


@dataclass(frozen=True, slots=True)
class Member:
    """One actor of a cluster. ``verifiers``: the numbers, from 0, of its verifiers, or of itself."""

    role: Role | Literal["gateway"]
    name: str
    settings: KeySettings
    verifiers: tuple[int, ...]
    threads: int = 1
    cpus: int = 0
    gpus: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """ "1 CPU, 1 duoactor_drafter" """
        counts = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return ", ".join(f"{count:g} {what}" for what, count in counts.items() if count)


def plan_members(wanted: Wanted, verifiers: int, *, has_gpus: bool) -> tuple[Member, ...]:
    """Verifiers first. Each has a controller on its host; drafters are dealt out to the verifiers in turn; a gateway
    connects to all. ``has_gpus``: whether the cluster has any, which is what ``device = "auto"`` takes.

    Raises ConfigError for settings that have no meaning on a cluster.
    """
    if wanted.learner is not None:
        raise ConfigError("a learner needs a directory that all drafters reach: it is not started on a cluster")
    for settings in (wanted.verifier, *wanted.drafters, wanted.controller, wanted.gateway):
        if settings is not None:
            _check(settings)
    everyone, wanted = range(verifiers), _with_own_head(wanted)
    verifier = _portable(wanted.verifier, "target", "tokenizer", "inline_draft", "datastore")
    threads = max(1, verifier.threads)
    target_gpus = int(verifier.device.startswith("cuda") or (verifier.device == "auto" and has_gpus))
    members = [
        Member(
            Role.VERIFIER,
            name := f"verifier-{number + 1}",
            msgspec.structs.replace(verifier, actor_id=name, threads=threads),
            (number,),
            threads,
            cpus=threads,
            gpus=target_gpus,
        )
        for number in everyone
    ]
    members += [
        Member(
            Role.CONTROLLER,
            name := f"controller-{number + 1}",
            msgspec.structs.replace(wanted.controller, actor_id=name),
            (number,),
        )
        for number in everyone
    ]
    for number, (drafter, name) in enumerate(zip(wanted.drafters, drafter_names(wanted.drafters), strict=True)):
        on_gpu = drafter.device.startswith("cuda")
        members.append(
            Member(
                Role.DRAFTER,
                name,
                msgspec.structs.replace(_portable(drafter, "draft", "target"), actor_id=name),
                (number % verifiers,),
                drafter.threads,
                cpus=drafter.threads,
                gpus=int(on_gpu),
                resources={} if on_gpu else {DRAFTER_RESOURCE: 1.0},
            )
        )
    if wanted.gateway is not None:
        members.append(Member(GATEWAY, "gateway", wanted.gateway, tuple(everyone)))
    return tuple(members)


def _check(settings: KeySettings) -> None:
    defaults = {option.name: option.default for option in options(type(settings))}
    for name in _DECIDED[type(settings)]:
        if (value := getattr(settings, name)) != defaults[name]:
            role = type(settings).__name__.removesuffix("Settings").lower()
            raise ConfigError(
                f"the {role}'s {name} = {value!r} has no meaning on a cluster, where hosts, ports and names are found "
                "and keys are made at the start: leave it out"
            )


def _with_own_head(wanted: Wanted) -> Wanted:
    """A drafter of the target's own head, which has no ``target`` itself, is none: the verifiers run that."""
    drafters = tuple(one for one in wanted.drafters if one.draft != AUTO_DRAFT or one.target)
    if drafters == wanted.drafters:
        return wanted
    inline = wanted.verifier.inline_draft or AUTO_DRAFT
    verifier = msgspec.structs.replace(wanted.verifier, inline_draft=inline)
    return replace(wanted, verifier=verifier, drafters=drafters)


def _portable(settings: S, *models: str) -> S:
    """Settings with whole paths of the files and directories among ``models``: processes run in other directories."""
    paths = {name: os.path.expanduser(getattr(settings, name)) for name in models}
    return msgspec.structs.replace(
        settings, **{name: os.path.abspath(path) for name, path in paths.items() if path and os.path.exists(path)}
    )
