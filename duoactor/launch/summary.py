"""The summary of ``up`` once its actors are ready, with a command to try."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duoactor import embedded, render
from duoactor.launch.child import GATEWAY, ActorPlan
from duoactor.launch.deployment import Deployment
from duoactor.status import cores_and_rates
from protocols.address import default_address
from protocols.messages import StatusReport

PROMPT = '"def factorial(n):"'  # a prompt to try, quoted for a shell


def actor_list(deployment: Deployment, actors: Sequence[tuple[ActorPlan, int]]) -> list[dict[str, Any]]:
    """The actors as the ``--json`` documents of ``up`` and ``demo`` list them."""
    models = {"verifier": deployment.verifier.target} | {d.actor_id: d.draft for d in deployment.drafters}
    return [
        {
            "role": str(plan.role),
            "actor_id": plan.name,
            "pid": pid,
            "endpoint": deployment.address if plan.role != GATEWAY else f"{http_url(*plan.http)}/v1",
            "model": render.model_name(models.get(plan.name, "")),
        }
        for plan, pid in actors
    ]


def http_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def connection_flags(deployment: Deployment) -> list[str]:
    """The flags that any command on this host needs to reach the verifier; the key is the caller's own."""
    flags = [] if deployment.address == default_address() else ["--connect", deployment.address]
    keys = deployment.controller
    if keys.key:
        flags += ["--key", "YOUR.key", "--server-key", str(Path(keys.server_key).absolute())]
    return flags


def print_up(
    deployment: Deployment,
    actors: Sequence[tuple[ActorPlan, int]],
    status: StatusReport | None,
    as_json: bool,
    unnamed: bool,
) -> None:
    """The summary of ``duoactor up``, on stdout. ``status``: what the verifier said when all were ready; ``unnamed``:
    the user named no model."""
    listed = actor_list(deployment, actors)
    if as_json:
        target = status.target if status is not None else None
        facts = {"address": deployment.address, "actors": listed, "target": target, "drafts": deployment.drafts}
        render.print_json(facts)
        return
    named = deployment.verifier.target
    said: list[tuple[str, str]] = []
    if embedded.is_bundled(named):
        said += [("model", embedded.ABOUT), ("", embedded.A_REAL_ONE)]
    elif unnamed:
        said += [("model", f"{Path(named).stem}, as none was named; `duoactor up MODEL` serves another")]
    said += [("drafts", deployment.drafts)] if deployment.drafts else []
    if status is not None:
        said += cores_and_rates(status.target)
    rows = [
        (one["actor_id"], f"pid {one['pid']}", one["endpoint"] if one["role"] == GATEWAY else one["model"])
        for one in listed
    ]
    url = next((http_url(*plan.http) for plan, _ in actors if plan.role == GATEWAY), "")
    print_summary(deployment.address, rows, said, connection_flags(deployment), url)


def print_summary(
    address: str,
    rows: Sequence[tuple[str, str, str]],
    facts: Sequence[tuple[str, str]],
    flags: Sequence[str],
    url: str = "",
) -> None:
    """``rows``: name, place and model of each actor; ``flags``: of commands that reach the verifier; ``url``: of the
    gateway."""
    print(f"duoactor is up at {address}\n")
    for name, place, model in rows:
        print(f"  {name:<14} {place:<14} {model}".rstrip())
    facts = [*facts, *([("page", f"{url}/ in a browser")] if url else [])]
    print("\n" * bool(facts), end="")
    columns = render.columns(sys.stdout)
    for label, text in facts:
        begin = f"  {label:<14} "
        lines = textwrap.TextWrapper(columns, begin, " " * len(begin), break_on_hyphens=False)  # flags stay whole
        print(lines.fill(text))
    indent, quoted = " " * len("Try:   "), [shlex.quote(flag) for flag in flags]
    asking = render.folded_command(["duoactor", "generate", *quoted, PROMPT], sys.stdout, indent)
    print(f"\nTry:   {asking}")
    if url:
        print(f"       curl {url}/v1/models")
    print(f"See:   {render.folded_command(['duoactor', 'status', *quoted], sys.stdout, indent)}")
    print("Stop:  Ctrl-C", flush=True)
