"""The demo: three processes on a private address, streams to look at, and a small benchmark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import click
from click.core import ParameterSource
from msgspec import Meta

from actors.engines.weights.hub import located
from actors.settings import Settings, VerifierSettings
from duoactor import render
from duoactor.bench import report
from duoactor.bench.benchmark import BenchJob, Benchmark, failed
from duoactor.bench.methods import choose
from duoactor.bench.suites import Prompt
from duoactor.cli.environment import Environment, private_address
from duoactor.cli.options import (
    Logs,
    json_option,
    log_options,
    make_pair,
    pair_options,
    settings_from,
    struct_options,
)
from duoactor.cli.waiting import say_if_slow
from duoactor.launch.deployment import Deployment
from duoactor.launch.signals import run_until_signal
from duoactor.launch.wanted import Wanted
from protocols.errors import ModelError
from protocols.messages import ChatTurn, Chunk, FinishReason, Method, Sampling

REAL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # 270 MB, and its answers make sense
REAL_PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the sum of all even numbers in a list.",
    "Repeat this list with the word done behind each line:\n- buy milk and bread\n- call the dentist on Monday\n"
    "- write the report for the team",
)
# of the kinds of text that the bundled pair was trained on
PROMPTS = (
    "Lisa has 12 apples. She buys 3 bags with 6 apples each and gives 8 apples to her brother. "
    "How many apples does she have now?",
    "Translate from German to English: Zwei Frauen sitzen auf einer Bank und lesen ein Buch.",
    "Write a Python function that returns the sum of all even numbers in a list.",
    "A train travels 60 miles per hour for 3 hours and then 45 miles per hour for 2 hours. "
    "How many miles does it travel in all?",
    "Write a Python function that checks whether a word is a palindrome.",
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
    no_reference: Annotated[bool, Meta(description="do not time transformers' own generate")] = False

    def job(self, prompts: Sequence[str]) -> BenchJob:
        """``prompts``: where none was named."""
        return BenchJob(
            prompts=[Prompt(str(number), "demo", (text,)) for number, text in enumerate(self.prompt or prompts, 1)],
            rows=choose(self.method if self.no_reference else f"{self.method},transformers"),
            repeats=self.repeats,
            sampling=Sampling(temperature=self.temperature, max_tokens=self.max_tokens),
            suite="demo",
        )


@click.command()
@pair_options
@struct_options(DemoOptions)
@json_option
@log_options
@click.pass_obj
def demo(environment: Environment, /, pair: Wanted, as_json: bool, logs: Logs, **flags: Any) -> int:
    """Stream a few prompts, timed against the target alone.

    Without --target it is SmolLM2-135M-Instruct (270 MB), with drafts copied from earlier text. Where neither the hub's
    cache nor the hub has it, it is the bundled pair of toy models.

    On a terminal, drafted tokens are green and the target's own magenta. The exit code is 1 if a text differs from the
    target's own, which never should happen. --json prints what `duoactor bench --json` does.

    \b
    Example:  duoactor demo
              duoactor demo --target ./my-model --draft ./my-draft --device cuda
              duoactor demo --json | jq '.table[] | {name, speedup: .cells.average.speedup}'
    """
    options = settings_from(DemoOptions, {}, flags)
    source = click.get_current_context().get_parameter_source
    named = ParameterSource.COMMANDLINE in (source("target"), source("draft"))
    real = None if named else real_pair(pair.verifier)
    if real is None and not (named or as_json):
        click.echo(f"duoactor: {REAL} is not in the cache, and no hub can be reached: toy models instead", err=True)
    pair = real or pair
    job = options.job(REAL_PROMPTS if real else PROMPTS)
    with private_address() as address:
        deployment = environment.deploy(pair.at(address), logs.flags)
        bench = Benchmark(deployment, job, partial(environment.running, log_lines=logs.verbose), "duoactor demo")
        run_until_signal(_run(bench, options.method, as_json))
    results = bench.results(complete=True)
    if as_json:
        render.print_json(
            {name: value for name, value in render.plain(results).items() if name not in ("runs", "loads")}
        )
    else:
        report.show(results)
        print(f"On {results.machine['cpu']}, {results.machine['cpus']} CPUs.\n")
        print("Other methods: duoactor bench --limit 2. Your own models: duoactor up --help.", flush=True)
    return 1 if failed(results) else 0


def real_pair(settings: VerifierSettings) -> Wanted | None:
    """A small model that was published, downloaded if need be; None: it cannot be had."""
    try:
        with say_if_slow(f"fetching {REAL}, the first time only"):
            located(REAL)
    except ModelError:
        return None
    return make_pair(target=REAL, device=settings.device, dtype=settings.dtype)


async def _run(bench: Benchmark, method: str, as_json: bool) -> None:
    spinner = render.Spinner(sys.stderr)
    streams: list[render.TokenStream] = []  # that are shown now

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
    target = render.model_name(deployment.verifier.target)
    small = ": small models, to show the speed and not to learn from" if target.startswith("bundled ") else ""
    draft = (
        render.model_name(deployment.drafters[0].draft) if deployment.drafters else "drafts copied from earlier text"
    )
    print(f"{target} and {draft}{small}.")
    if colour:
        print(
            f"{render.ACCEPTED}Green{render.RESET}: drafted, and confirmed by the target. "
            f"{render.OWN}Magenta{render.RESET}: the target's own."
        )
    print(flush=True)
