"""Measure where drafts pay: inline, on this host, 0.1 to 20 ms away, by retrieval. Run it from the repository's root:

python -m tools.speedups --limit 1 --streams 1,2,4 --target DIR --draft DIR --out DIR
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from duoactor import config
from duoactor.bench.benchmark import BenchJob, Benchmark
from duoactor.bench.datastore import datastore_for
from duoactor.bench.methods import choose
from duoactor.bench.provenance import machine
from duoactor.bench.streams import choose_streams
from duoactor.cli.bench import BenchOptions, command_line, progress
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.options import Logs, log_options, pair_options, settings_from, struct_options
from duoactor.launch.deployment import Deployment
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import DuoactorError
from tools.speedups.map import markdown
from tools.speedups.picture import svg
from tools.speedups.survey import METHOD, Survey


@click.command()
@struct_options(BenchOptions)
@pair_options
@log_options
def speedups(pair: Wanted, logs: Logs, **flags: Any) -> None:
    """Write map.json, map.svg and report.md. Options are those of `duoactor bench`."""
    environment, options = Environment(), settings_from(BenchOptions, {}, flags)
    streams = options.streams or ("1,8,32" if "accelerator" in machine() else "1,2,4")
    job = replace(options.job(), rows=choose(METHOD), streams=choose_streams(streams))
    directory = Path(options.out or "map")
    target = config.resolve_model(pair.verifier.target, "target", tokenizer=pair.verifier.tokenizer)
    stored = datastore_for(options.datastore, False, directory / "datastore", target, environment.command)
    running = partial(environment.running, log_lines=logs.verbose)

    def deployed(wanted: Wanted) -> Deployment:
        return environment.deploy(wanted, logs.flags or ("--quiet",))

    def benchmark(deployment: Deployment, job: BenchJob) -> Benchmark:
        return Benchmark(deployment, job, running, command_line())

    with private_address() as address, progress() as show:
        wanted = pair.at(address, target=target, datastore=stored.directory)
        found = run_until_signal(Survey(wanted, available_cpus(), job, deployed, benchmark).measure(show))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "map.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    (directory / "map.svg").write_text(svg(found), encoding="utf-8")
    (directory / "report.md").write_text(markdown(found), encoding="utf-8")
    click.echo(f"{markdown(found)}\nBy cost ratio, agreement and batch size: {directory / 'map.svg'}")
    if found.different:
        sys.exit(1)


if __name__ == "__main__":
    try:
        speedups()
    except DuoactorError as error:
        sys.exit(f"speedups: {error}")
