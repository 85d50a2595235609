"""Settings of all wanted actors from ``duo.toml`` and flags, for this host or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from actors.settings import (
    AUTO_DRAFT,
    NO_DRAFT,
    RETRIEVAL,
    ControllerSettings,
    DrafterSettings,
    LearnerSettings,
    VerifierSettings,
)
from duoactor import config
from duoactor.embedded import SMALL
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError

UP_DECIDES = ("connect", "key", "server_key")  # `up` decides these for its drafters and gateway; duo.toml may
NO_HTTP = "none"
NOT_THE_GATEWAYS = (*UP_DECIDES, "http", "shutdown_timeout")  # flags of `up` that are its own or the verifier's


class ClashError(ConfigError):
    """Options that do not fit together."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings as they were given: addresses, names and cores may still be open. ``drafts``: how drafts are made, where
    that was not said."""

    verifier: VerifierSettings
    drafters: tuple[DrafterSettings, ...]
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    gateway: GatewaySettings | None = None
    learner: LearnerSettings | None = None
    drafts: str = ""

    def at(self, address: str, **verifier: str) -> Wanted:
        """The same with the verifier at ``address``, and other settings of it."""
        return replace(self, verifier=msgspec.structs.replace(self.verifier, bind=address, **verifier))


def read_wanted(
    file: str,
    flags: Mapping[str, object],
    *,
    drafters: int | None = None,
    http: str | None = None,
    learn: bool = False,
) -> Wanted:
    """``flags``: values by option name, the drafters' with ``draft_`` before it; they win over the file's.

    Raises ClashError, and ConfigError for what the file says.
    """
    asked = config.read(file)
    own = config.given(flags, DrafterSettings, prefix="draft_", leave_out=UP_DECIDES)
    if own.get("draft") == NO_DRAFT:
        del own["draft"]
        drafters = 0
    tables = asked.drafters or ({},)
    if drafters is not None:
        if len(asked.drafters) > 1:
            has = f"{len(asked.drafters)} [[drafter]] of {file}"
            raise ClashError(f"--drafters {drafters} does not fit the {has}: leave it out")
        if drafters == 0 and "draft" in own:
            raise ClashError("--draft needs a drafter: leave --drafters 0 out, or name the model by --inline-draft")
        tables = tuple(tables[0] for _ in range(drafters))
    verifier = config.build(VerifierSettings, asked.verifier, config.given(flags, VerifierSettings))
    drafts = ""
    named = [own["draft"]] if "draft" in own else [table["draft"] for table in tables if "draft" in table]
    if drafters != 0 and all(draft == AUTO_DRAFT for draft in named):
        draft, drafts = config.choose_draft(verifier.target)
        own.pop("draft", None)
        if not draft and not own and not asked.drafters and drafters is None:
            tables = ()  # the verifier retrieves by itself
        own["draft"] = draft or RETRIEVAL
    gateway = _gateway(asked.gateway, http, flags)
    if gateway is not None and verifier.target == SMALL and not gateway.served_model_name:
        gateway = msgspec.structs.replace(gateway, served_model_name=(SMALL,))  # its file has another name
    return Wanted(
        verifier=verifier,
        drafters=tuple(config.build(DrafterSettings, table, own) for table in tables),
        controller=config.build(ControllerSettings, asked.controller),
        gateway=gateway,
        learner=config.build(LearnerSettings, asked.learner) if learn or asked.learner else None,
        drafts=drafts,
    )


def _gateway(table: config.Values, http: str | None, flags: Mapping[str, object]) -> GatewaySettings | None:
    """The gateway's settings; None if ``http`` says so, or neither it nor the file's [gateway] asks for one."""
    own = config.given(flags, GatewaySettings, leave_out=NOT_THE_GATEWAYS)
    if http == NO_HTTP or (http is None and not table):
        for name in own:
            change = "leave --http none out" if http == NO_HTTP else "give --http, too"
            raise ClashError(f"--{name.replace('_', '-')} is the gateway's: {change}")
        return None
    return config.build(GatewaySettings, table, own, {"http": http} if http is not None else {})
