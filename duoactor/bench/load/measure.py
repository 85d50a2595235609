"""One benchmark under load from start to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duoactor.bench.answers import Ours
from duoactor.bench.benchmark import Access, Observations, deployed, inflated_of, machine_of, models_of
from duoactor.bench.load.cells import Cell, LoadResults
from duoactor.bench.load.running import LoadBench, Loads, long_prompt
from duoactor.bench.provenance import versions
from duoactor.bench.runner import Show, warm_up
from duoactor.bench.store import Store
from duoactor.bench.suites import Prompt
from duoactor.launch.deployment import Deployment
from protocols.messages import Sampling

ONE_AT_A_TIME = "answers one request at a time"


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What is to be measured."""

    prompts: Sequence[Prompt]
    loads: Loads
    sampling: Sampling


async def measure_loads(
    deployment: Deployment, job: LoadJob, store: Store[Cell], found: Observations, access: Access, show: Show
) -> None:
    """``found`` and ``store`` hold what is finished at any time."""
    loads = job.loads
    async with deployed(deployment, access) as (client, status):
        found.models |= models_of(deployment, status)
        found.missing |= {row.name: ONE_AT_A_TIME for row in loads.rows if not row.ours}
        rows = [row for row in loads.rows if row.ours]
        ours = Ours(client)
        found.missing |= await warm_up(
            dict.fromkeys((r.name for r in rows), ours), rows, job.prompts[0], job.sampling, show
        )
        rows = [row for row in rows if row.name not in found.missing]
        long = await long_prompt(ours, job.prompts)
        bench = LoadBench(store, job.prompts, long, job.sampling, ours, show)
        await bench.run(Loads(loads.arrivals, loads.streams, rows, loads.repeats))


def load_results_of(
    deployment: Deployment,
    job: LoadJob,
    store: Store[Cell],
    found: Observations,
    command: str,
    load: str,
    complete: bool,
) -> LoadResults:
    """The document, of what there is so far."""
    order = {kind: place for place, kind in enumerate(job.loads.arrivals)}
    cells = sorted(store.runs, key=lambda cell: (order.get(cell.arrivals, len(order)), cell.streams, cell.repeat))
    return LoadResults(
        command=command,
        settings=store.settings,
        complete=complete,
        repeats=job.loads.repeats,
        methods=tuple(row.name for row in job.loads.rows if row.ours),
        missing=found.missing,
        machine=machine_of(deployment, load),
        versions=versions(),
        models=found.models,
        inflated=inflated_of(deployment),
        cells=tuple(cells),
    )
