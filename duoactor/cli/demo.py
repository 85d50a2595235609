"""The demo: three processes on a private address, a stream to look at, and a table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import click

from actors.settings import BUNDLED, ControllerSettings, DrafterSettings, VerifierSettings
from duoactor import render
from duoactor.bench import demo as measuring
from duoactor.bench.provenance import machine
from duoactor.bench.reference import Reference
from duoactor.cli.environment import Environment, available_cpus, private_address
from duoactor.cli.options import json_option, log_options, method_option
from duoactor.client.async_client import AsyncClient
from duoactor.launch.deployment import Deployment, deploy
from duoactor.launch.progress import LaunchReport
from duoactor.launch.signals import run_until_signal
from duoactor.launch.summary import actor_list
from duoactor.launch.supervisor import Supervisor
from protocols.messages import Chunk, FinishReason, Method, Sampling


@dataclass(frozen=True, slots=True)
class Show:
    """What to run, and how to show it."""

    prompts: Sequence[str]
    sampling: Sampling
    method: str
    repeats: int
    reference: bool
    as_json: bool
    log_lines: bool


@click.command()
@click.option("--target", default=BUNDLED, metavar="TEXT", help="target model: a directory or hub id  [bundled]")
@click.option("--draft", default=BUNDLED, metavar="TEXT", help="draft model: a directory or hub id  [bundled]")
@method_option
@click.option("--device", default="auto", metavar="TEXT", help="torch device of the target  [auto]")
@click.option("--dtype", default="auto", metavar="TEXT", help="auto, float32, bfloat16 or float16  [auto]")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="your own prompt; may be repeated")
@click.option("--max-tokens", default=96, type=click.IntRange(1), metavar="N", help="most tokens per answer  [96]")
@click.option("--temperature", default=0.0, type=click.FloatRange(0), metavar="X", help="0 is greedy  [0]")
@click.option("--repeats", default=3, type=click.IntRange(1), metavar="N", help="timed runs per prompt and method  [3]")
@click.option("--no-reference", is_flag=True, help="do not time transformers' own generate")
@json_option
@log_options
@click.pass_obj
def demo(
    environment: Environment,
    /,
    target: str,
    draft: str,
    method: str,
    device: str,
    dtype: str,
    prompts: tuple[str, ...],
    max_tokens: int,
    temperature: float,
    repeats: int,
    no_reference: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Watch text stream, and see how much faster it came. The same prompts are timed with the target alone, too.

    Drafted tokens are green, the target's own magenta. Exit code 1 if any two texts differ: they never should.

    \b
    Example:  duoactor demo
              duoactor demo --target ./my-model --draft ./my-draft --device cuda
              duoactor demo --json | jq .speedup
    """
    show = Show(
        prompts=prompts or measuring.PROMPTS,
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        method=method,
        repeats=repeats,
        reference=not no_reference,
        as_json=as_json,
        log_lines=verbose,
    )
    with private_address() as address:
        deployment = deploy(
            VerifierSettings(target=target, device=device, dtype=dtype, bind=address),
            [DrafterSettings(draft=draft)],
            ControllerSettings(),
            cpus=available_cpus(),
            command=environment.command,
            log_flags=("--verbose",) if verbose else ("--quiet",) if quiet else (),
        )
        return run_until_signal(_show(environment, deployment, show))


async def _show(environment: Environment, deployment: Deployment, show: Show) -> int:
    report = LaunchReport(lines=show.log_lines)
    address = deployment.address
    async with Supervisor(
        deployment.plans, environment.probe(deployment), report=report, address=address
    ) as supervisor:
        report.done()
        actors = actor_list(deployment, supervisor.actors)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(environment.connect_async(address))
            if not show.as_json:
                _introduce(deployment)
            shown = [await _stream(client, number, show) for number in range(len(show.prompts))]
            progress = render.Spinner(sys.stderr)
            contenders: list[measuring.Contender] = [
                lambda number, prompt: measuring.ask(client, number, prompt, show.sampling, show.method),
                lambda number, prompt: measuring.ask(client, number, prompt, show.sampling, Method.VANILLA),
            ]
            if show.reference:
                progress.show("loading the target into transformers …")
                status = await client.status()
                reference = await stack.enter_async_context(Reference.started(deployment.verifier, status))
                contenders.append(
                    lambda number, prompt: measuring.ask_transformers(reference, number, prompt, show.sampling)
                )
            fast, plain, *others = await measuring.measure(contenders, show.prompts, show.repeats, progress.show)
        progress.show("")
    found = measuring.figures(fast, plain, shown)
    theirs = others[0] if others else []
    if show.as_json:
        render.print_json(_document(found, theirs, actors))
    else:
        _print_table(found, theirs, actors)
    return 0 if found.identical else 1


def _introduce(deployment: Deployment) -> None:
    """What a stranger must know to make sense of what follows."""
    target = deployment.verifier.target
    small = ": small ones, to watch the speed of and not to learn from" if _is_bundled(target) else ""
    print(f"{render.model_name(target)} and {render.model_name(deployment.drafters[0].draft)}{small}.")
    if render.wants_colour("auto", sys.stdout):
        print(
            f"{render.ACCEPTED}Green{render.RESET}: drafted, and confirmed by the target. "
            f"{render.OWN}Magenta{render.RESET}: the target's own."
        )
    print(flush=True)


def _is_bundled(model: str) -> bool:
    return render.model_name(model).startswith("bundled ")


async def _stream(client: AsyncClient, number: int, show: Show) -> measuring.Run:
    prompt = show.prompts[number]
    if show.as_json:
        return await measuring.ask(client, number, prompt, show.sampling, show.method)
    colour = render.wants_colour("auto", sys.stdout)
    print(f"{render.DIM}> {prompt}{render.RESET}" if colour else f"> {prompt}", flush=True)
    out = render.TokenStream(sys.stdout, colour)

    def write(chunk: Chunk) -> None:
        out.write(chunk.pieces, chunk.accepted, chunk.text)
        if chunk.finish_reason == FinishReason.LENGTH:
            out.write((), (), " …")  # --max-tokens ended it, not the model

    try:
        return await measuring.ask(client, number, prompt, show.sampling, show.method, write)
    finally:
        out.close()
        print(flush=True)


def _document(
    found: measuring.Figures, theirs: Sequence[measuring.Run], actors: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        **asdict(found),
        "transformers_tokens_per_second": measuring.tokens_per_second(theirs) if theirs else None,
        "actors": actors,
        "machine": machine(),
    }


def _print_table(found: measuring.Figures, theirs: Sequence[measuring.Run], actors: list[dict[str, Any]]) -> None:
    speeds = render.table("", ">tokens/s", ">speed-up", ">first token")
    rows = [
        (f"duoactor ({found.method})", found.tokens_per_second, found.ttft_ms),
        ("the target alone (vanilla)", found.vanilla_tokens_per_second, found.vanilla_ttft_ms),
    ]
    if theirs:
        ttft = statistics.median(run.ttft_ms for run in theirs)
        rows.append(("transformers generate", measuring.tokens_per_second(theirs), ttft))
    for name, rate, ttft in rows:
        speeds.add_row(name, f"{rate:.1f}", f"{rate / found.vanilla_tokens_per_second:.2f}x", f"{ttft:.0f} ms")
    render.print_table(speeds)
    print()
    facts = render.table("", "")
    facts.show_header = False
    by_prompt = f"{found.speedup_lowest:.2f}x to {found.speedup_highest:.2f}x, median {found.speedup_median:.2f}x"
    facts.add_row("speed-up by prompt", by_prompt)
    facts.add_row("tokens a round", f"{found.mean_acceptance_length:.2f} (the target alone: 1)")
    facts.add_row("texts", f"all {found.runs} identical" if found.identical else "NOT IDENTICAL: please report this")
    where = machine()
    facts.add_row("machine", f"{where['cpu']}, {where['cpus']} CPUs")
    facts.add_row("processes", ", ".join(f"{actor['role']} {actor['pid']}" for actor in actors))
    render.print_table(facts)
    print("\nOther methods: duoactor bench --limit 2. Your own models: duoactor up --help.", flush=True)
