"""A benchmark under load."""

from __future__ import annotations

from pathlib import Path

from duoactor.bench.answers import Ours
from duoactor.bench.benchmark import Benchmark
from duoactor.bench.load.cells import LINES, Cell, LoadResults
from duoactor.bench.load.report import load_tables, load_verdict, write_loads
from duoactor.bench.load.running import LoadBench, Loads, long_prompt
from duoactor.bench.load.summary import summarize_load
from duoactor.bench.report import REPORT
from duoactor.bench.runner import Show
from duoactor.render import plain


class UnderLoad(Benchmark[Cell]):
    """Every row of ours at every load, in turns; ``transformers`` answers one request at a time."""

    lines, record, records = LINES, Cell, "cells"

    async def measure(self, show: Show) -> None:
        job = self.job
        async with self.deployed() as (client, _), self.rounds() as rounds:
            self.missing |= {row.name: "answers one request at a time" for row in job.rows if not row.ours}
            ours, rows = Ours(client, rounds), [row for row in job.rows if row.ours]
            rows = await self.warm_up({row.name: ours for row in rows}, rows, show)
            long = await long_prompt(ours, job.prompts)
            bench = LoadBench(self.store, job.prompts, long, job.sampling, ours, show)
            await bench.run(Loads(job.arrivals, job.streams, rows, job.repeats))

    def results(self, complete: bool) -> LoadResults:
        order = {kind: place for place, kind in enumerate(self.job.arrivals)}
        cells = sorted(
            self.store.runs, key=lambda cell: (order.get(cell.arrivals, len(order)), cell.streams, cell.repeat)
        )
        facts = self.facts(complete) | {"methods": tuple(row.name for row in self.job.rows if row.ours)}
        found = LoadResults(**facts, cells=tuple(cells))
        found.table = [plain(line) for line in summarize_load(found)]
        return found

    @staticmethod
    def write(results: LoadResults, directory: Path) -> object:
        return write_loads(results, directory)

    @staticmethod
    def show(results: LoadResults, directory: Path) -> None:
        lines = summarize_load(results)
        for table in load_tables(lines):
            table.show()
        for sentence in load_verdict(lines):
            print(sentence)
        print(f"How to read it, and pictures: {directory / REPORT}", flush=True)

    @staticmethod
    def failed(results: LoadResults) -> bool:
        return any(line.failed for line in summarize_load(results))
