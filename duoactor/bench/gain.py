"""Where the gain of ``auto`` comes from: who had named the draft tokens that were accepted.

Requests of a benchmark have a cache salt each, so that no row copies what another was told: the memory of ended
requests has no part in it. What a source is worth is not its share, since another would have had some of its tokens:
that tells ``duoactor replay --ablate``, which takes one away after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duoactor.bench.results import AcceptedBy, Cost, Results, Run
from duoactor.bench.summary import AVERAGE, Line, summarize, work_of
from duoactor.bench.tables import Table
from protocols.messages import Method

NAMES = {
    "draft": "draft model alone",
    "both": "both",
    "text": "the request's own text alone",
    "memory": "memory",
    "datastore": "datastore",
}
OPTIONAL = ("memory", "datastore")  # are left out where they had no part
ONE_SOURCE = (Method.TREE, Method.SAM)
NOTE = (
    "Shares of the draft tokens that were accepted: a draft model alone had named them; both, it and what the verifier "
    "retrieves; or retrieval alone. Memory of other requests has no part in a benchmark: each request has a cache salt "
    "of its own. A share is not what a source is worth, since another has many of its tokens too: "
    "`duoactor replay LOG --method auto --ablate` takes one away after the other."
)
ROWS_NOTE = " tree and SAM: speed-up of the rows with one source, drafts or the own text."


def sources_in(runs: Sequence[Run]) -> AcceptedBy | None:
    """All together; None where nothing was told, or nothing accepted."""
    costs: list[Cost] = [run.cost for run in runs if run.cost is not None]
    told = [cost.sources for cost in costs if cost.sources is not None]
    total = AcceptedBy(**{name: sum(getattr(one, name) for one in told) for name in AcceptedBy.__struct_fields__})
    return total if any(msgspec.structs.astuple(total)) else None


def where_from(results: Results) -> Table | None:
    """None where ``auto`` was not measured, or by a verifier that did not tell."""
    runs = [run for run in results.runs if run.method == Method.AUTO and not run.error]
    total = sources_in(runs)
    lines = {line.name: line for line in summarize(results)}
    if total is None or not lines[Method.AUTO].cells:
        return None
    others = [lines[name] for name in ONE_SOURCE if name in lines and lines[name].cells]
    shown = [name for name in NAMES if name not in OPTIONAL or getattr(total, name)]
    rows = []
    for task in (*results.settings.tasks, AVERAGE):
        some = [run for run in runs if task in (run.task, AVERAGE)]
        if task in lines[Method.AUTO].cells:
            rows.append(_row(task, some, lines[Method.AUTO], shown, others))
    columns = ("task", "speed-up", "tokens/round", *(NAMES[name] for name in shown), *(line.label for line in others))
    return Table("Where auto's gain comes from", columns, tuple(rows), note=NOTE + ROWS_NOTE * bool(others))


def _row(task: str, runs: Sequence[Run], auto: Line, shown: Sequence[str], others: Sequence[Line]) -> tuple[str, ...]:
    found, work = sources_in(runs), work_of(runs)
    return (
        task,
        f"{auto.cells[task].speedup:.2f}x",
        f"{work.mean_acceptance_length:.2f}" if work is not None else "-",
        *(_share(found, name) for name in shown),
        *(f"{line.cells[task].speedup:.2f}x" if task in line.cells else "-" for line in others),
    )


def _share(found: AcceptedBy | None, name: str) -> str:
    return "-" if found is None else f"{getattr(found, name) / sum(msgspec.structs.astuple(found)):.0%}"


def in_short(results: Results) -> str:
    """One sentence; empty where there is nothing to say."""
    found = sources_in([run for run in results.runs if run.method == Method.AUTO and not run.error])
    if found is None:
        return ""
    retrieved = sum(getattr(found, name) for name in ("text", *OPTIONAL))
    return (
        f"Of the draft tokens that auto had accepted, {_share(found, 'draft')} only the draft model had named, "
        f"{retrieved / sum(msgspec.structs.astuple(found)):.0%} only retrieval, {_share(found, 'both')} both."
    )
