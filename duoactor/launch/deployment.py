"""Makes settings into a set of actors on this machine: addresses, models, cores, command lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from actors.engines.heads.kinds import configuration, kind_of
from actors.settings import (
    AUTO_DRAFT,
    MAX_THREADS,
    RETRIEVAL,
    ControllerSettings,
    DrafterSettings,
    LearnerSettings,
    PeerSettings,
    Settings,
    VerifierSettings,
    retrieves,
)
from duoactor.config import options, resolve_model, resolve_tokenizer
from duoactor.launch.child import GATEWAY, ActorPlan, own_command
from duoactor.launch.cores import Cores, assign_cores, format_cpus
from duoactor.launch.wanted import Wanted
from duoactor.serve.settings import API_KEYS, parse_http
from protocols.address import parse
from protocols.errors import ConfigError
from protocols.messages import Role

P = TypeVar("P", bound=PeerSettings)
SECRETS = {"api_key": API_KEYS}  # the environment variable of each secret option
ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Deployment(Wanted):
    """Settings with every option decided, and the start of each actor."""

    plans: tuple[ActorPlan, ...] = ()

    @property
    def address(self) -> str:
        """The address for clients on this machine."""
        return self.controller.connect

    @property
    def first_draft(self) -> str:
        """The first drafter's draft; without drafters the verifier retrieves by itself."""
        return self.drafters[0].draft if self.drafters else RETRIEVAL


def deploy(
    wanted: Wanted,
    *,
    cpus: Sequence[int],
    log_flags: Sequence[str] = (),
    command: Callable[..., tuple[str, ...]] = own_command,
) -> Deployment:
    """Complete the settings and make a plan for each actor.

    ``wanted.verifier.bind`` must be given. ``cpus`` are the CPUs that may be used; ``log_flags`` go to every child.
    Raises ConfigError or ModelError before anything is started.
    """
    wanted = _with_heads(wanted)
    address, keys = _connectable(wanted.verifier.bind), _family_keys(wanted.verifier)
    names = drafter_names(wanted.drafters)
    threads = [drafter.threads for drafter in wanted.drafters]
    # a drafter on a GPU needs a core for its launches where the target would take them all
    need_cores = wanted.verifier.device == "cpu" or any(drafter.device == "cpu" for drafter in wanted.drafters)
    cores = assign_cores(cpus, threads, drafters_need_cores=need_cores)
    drafters = tuple(
        replace(
            _beside(drafter, address, keys),
            draft=resolve_model(drafter.draft, "draft"),
            target=drafter.target and resolve_model(drafter.target, "target"),
            cpus=drafter.cpus or format_cpus(own),
            actor_id=name,
        )
        for drafter, name, own in zip(wanted.drafters, names, cores.drafters, strict=True)
    )
    controller = _beside(wanted.controller, address, keys)
    learner = wanted.learner and _learner(wanted.learner, drafters, controller)
    gateway = wanted.gateway
    if gateway is not None:
        gateway = replace(
            gateway if gateway.key else replace(gateway, **keys),
            connect=gateway.connect or (address,),
            shutdown_timeout=max(gateway.shutdown_timeout, wanted.verifier.shutdown_timeout),
        )
    verifier = _verifier(wanted, cores, len(cpus))
    decided = (verifier, drafters, controller, gateway, learner, wanted.drafts)

    def line(role: str, settings: Settings) -> tuple[str, ...]:
        return command(str(role), "--supervised", *log_flags, *flags(settings))

    return Deployment(*decided, tuple(_plans(Wanted(*decided), line)))


def _with_heads(wanted: Wanted) -> Wanted:
    """A drafter that names a head, or the target's own, and no ``target`` is none: the verifier runs that."""
    heads, drafters = list[str](), list[DrafterSettings]()
    for drafter in wanted.drafters:
        model = bool(drafter.target) or (
            drafter.draft != AUTO_DRAFT
            and (retrieves(drafter.draft) or not kind_of(configuration(resolve_model(drafter.draft, "draft"))))
        )
        if model:
            drafters.append(drafter)
        else:
            heads.append(drafter.draft)
    if not heads:
        return wanted
    verifier = replace(wanted.verifier, inline_draft=wanted.verifier.inline_draft or heads[0])
    named = "by the target's own head" if heads[0] == AUTO_DRAFT else f"by {heads[0]}"
    return Wanted(verifier, tuple(drafters), wanted.controller, wanted.gateway, wanted.learner, wanted.drafts or named)


def _plans(settings: Wanted, line: Callable[[str, Settings], tuple[str, ...]]) -> Iterator[ActorPlan]:
    verifier = settings.verifier
    yield ActorPlan(
        Role.VERIFIER,
        "verifier",
        line(Role.VERIFIER, verifier),
        verifier.threads,
        finish_s=verifier.shutdown_timeout,
    )
    for drafter in settings.drafters:
        yield ActorPlan(Role.DRAFTER, drafter.actor_id, line(Role.DRAFTER, drafter), drafter.threads)
    yield ActorPlan(Role.CONTROLLER, "controller", line(Role.CONTROLLER, settings.controller))
    if settings.learner is not None:
        yield ActorPlan(Role.LEARNER, "learner", line(Role.LEARNER, settings.learner))
    if (gateway := settings.gateway) is not None:
        yield ActorPlan(
            GATEWAY,
            "gateway",
            line("serve", gateway),
            http=reachable_http(gateway.http),
            finish_s=verifier.shutdown_timeout,
            secrets=secrets(gateway),
        )


def _verifier(wanted: Wanted, cores: Cores, cpus: int) -> VerifierSettings:
    """The verifier's settings. ``cpus``: the number for all actors."""
    verifier = wanted.verifier
    lent = {cpu for own in cores.drafters for cpu in own}
    if verifier.threads or verifier.cpus:
        lent = set()
    inline = _inline_draft(wanted)
    return replace(
        verifier,
        target=resolve_model(verifier.target, "target", tokenizer=verifier.tokenizer),
        tokenizer=resolve_tokenizer(verifier.tokenizer),
        cpus=verifier.cpus or format_cpus(cores.verifier),
        threads=verifier.threads or min(MAX_THREADS, len(cores.verifier) or cpus),
        spare_cpus=verifier.spare_cpus or format_cpus(sorted(lent)),
        inline_draft=inline and resolve_model(inline, "inline draft" if verifier.inline_draft else "draft"),
    )


def _inline_draft(wanted: Wanted) -> str:
    """The verifier's own draft model, for a target on this CPU: its first drafter's."""
    if wanted.verifier.inline_draft:
        return wanted.verifier.inline_draft
    return next((d.draft for d in wanted.drafters if d.device == "cpu" and not (d.target or retrieves(d.draft))), "")


def _beside(peer: P, address: str, keys: Mapping[str, str]) -> P:
    """An actor of the verifier at ``address``; ``keys`` are used where it has no own."""
    return replace(peer if peer.key else replace(peer, **keys), connect=peer.connect or address)


def _learner(
    learner: LearnerSettings, drafters: Sequence[DrafterSettings], beside: ControllerSettings
) -> LearnerSettings:
    """The learner of the first drafter with a model, on the cores of all drafters: they are idle while the target
    computes. ConfigError if there is no such drafter."""
    taught = next((drafter for drafter in drafters if not (drafter.target or retrieves(drafter.draft))), None)
    if taught is None:
        raise ConfigError(
            "a learner trains draft models and no heads, and no drafter here has a model: leave --learn out, or give "
            "--draft a model"
        )
    keys = {} if learner.key else {"key": beside.key, "server_key": beside.server_key}
    cpus = sorted({int(cpu) for drafter in drafters for cpu in drafter.cpus.split(",") if cpu})
    return replace(
        learner,
        **keys,
        connect=learner.connect or beside.connect,
        draft=taught.draft,
        dtype=taught.dtype,
        cpus=learner.cpus or format_cpus(cpus),
    )


def flags(settings: Settings) -> list[str]:
    """The command-line flags that give these settings without their secrets; ``=``: a value may begin with a dash."""
    return [
        option.flag if option.kind == "switch" else f"{option.flag}={value}"
        for option in options(type(settings))
        if option.name not in SECRETS and (given := getattr(settings, option.name)) != option.default
        for value in (given if option.repeated else (given,))
    ]


def secrets(settings: Settings) -> dict[str, str]:
    """The environment variables that give these settings' secrets."""
    given = {variable: getattr(settings, name, ()) for name, variable in SECRETS.items()}
    return {variable: "\n".join(values) for variable, values in given.items() if values}


def reachable_http(http: str) -> tuple[str, int]:
    """The address at which this host reaches a gateway."""
    host, port = parse_http(http)
    if port == 0:
        raise ConfigError(f"{http} leaves the port open, but it must be known who answers there: give --http a port")
    return ANY_HOST.get(host, host), port


def _connectable(bind: str) -> str:
    address = parse(bind, bind=True)
    if address.scheme == "tcp" and address.port == 0:
        raise ConfigError(f"{bind} leaves the port open, but the other actors must know it: give --bind a port")
    if address.host in ANY_HOST:
        host = ANY_HOST[address.host]
        return f"tcp://{f'[{host}]' if ':' in host else host}:{address.port}"
    return str(address)


def _family_keys(verifier: VerifierSettings) -> dict[str, str]:
    """A verifier admits its own key, so actors started with it may use that key if they have none."""
    if not verifier.key:
        return {}
    return {"key": verifier.key, "server_key": str(Path(verifier.key).with_suffix(".pub"))}


def drafter_names(drafters: Sequence[DrafterSettings]) -> list[str]:
    """Given names, else numbers. ConfigError for a name that is given twice."""
    names = [
        drafter.actor_id or (f"drafter-{number}" if len(drafters) > 1 else "drafter")
        for number, drafter in enumerate(drafters, start=1)
    ]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"two drafters have the actor_id {min(twice)}: give each its own")
    return names


def check_address(deployment: Deployment) -> None:
    """Bind the verifier's address for a moment. Raises ConfigError, in one sentence that says what is needed, for what
    would otherwise end the verifier while other actors load: keys that are missing, an address in use."""
    from actors.process import open_network

    async def bind() -> None:
        network = open_network(deployment.verifier)
        try:
            network.listen(deployment.verifier.bind)
        finally:
            network.close()
        for peer in (*deployment.drafters, deployment.controller):
            open_network(peer).close()

    asyncio.run(bind())
