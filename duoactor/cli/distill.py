"""The command that makes a draft model for a target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from actors.training.plan import EXPECTED, Progress, Text, TrainingPlan, TrainingResult
from duoactor import config, render
from duoactor.bench.suites import BUILTIN, load_suite
from duoactor.cli.environment import available_cpus
from duoactor.cli.options import json_option
from duoactor.distill import ALL, card, lengths, rows, verdict
from duoactor.doctor import busy
from duoactor.status import agreement
from protocols.errors import ConfigError


@click.command()
@click.option("--target", default="bundled", metavar="TEXT", help="target model that the draft is for  [bundled]")
@click.option("--out", required=True, metavar="DIR", help="directory to write the draft to")
@click.option(
    "--prompts",
    multiple=True,
    metavar="FILE",
    help="JSONL suite, or text with one prompt per line; may be repeated  [the target asks itself]",
)
@click.option(
    "--kind",
    default="draft",
    type=click.Choice(["draft", "head"]),
    help="a draft model, or an EAGLE-3 head that reads the target's states  [draft]",
)
@click.option(
    "--shape",
    default="auto",
    metavar="TEXT",
    help="width and layers such as 768x2; auto: by how fast steps and rounds are here  [auto]",
)
@click.option(
    "--init",
    default="",
    metavar="DIR",
    help="train this draft further, instead of a new one",
)
@click.option(
    "--minutes",
    default=30.0,
    type=click.FloatRange(min=0.01),
    metavar="X",
    help="minutes of answering and training  [30]",
)
@click.option("--device", default="auto", metavar="TEXT", help="torch device: auto, cpu, cuda, cuda:1 …  [auto]")
@click.option("--resume", is_flag=True, help="go on in --out, for --minutes more")
@json_option
def distill(prompts: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Make a draft model out of what a target writes.

    The target answers the prompts, and questions of its own, greedy and sampled. A small model that begins with
    weights of the target learns its distributions. Prompts like those of its users serve best.
    Some are kept apart: DIR/README.md says how often the draft agrees with the target's answers to them. After Ctrl-C
    or a crash the same command with --resume goes on.

    \b
    Example:  duoactor distill --target my/model --prompts questions.jsonl \\
                  --out draft --minutes 60
              duoactor up --target my/model --draft draft
              duoactor distill --target my/model --kind head --out head
    """
    own_shape = flags["shape"] == "auto" and not flags["init"]
    if flags["kind"] == "head" and not own_shape:
        raise click.UsageError("a head has the target's width and begins anew: leave --shape and --init out")
    from actors.training.distill import distill as train

    plan = _plan(prompts, flags)
    if (told := busy(len(plan.cpus))) is not None:
        choose = ", or choose the --shape yourself" if own_shape and plan.kind == "draft" else ""
        render.say(f"{told}{choose}")
    try:
        with render.Spinner(sys.stderr) as spinner:
            spinner.show(f"loading {render.model_name(plan.target)} …")
            result = train(plan, lambda at: _show(spinner, at))
    except KeyboardInterrupt:
        if Path(plan.out).exists():
            render.say("interrupted; the same command with --resume goes on")
        raise
    _tell(plan, result, as_json)


def _plan(prompts: Sequence[str], flags: dict[str, Any]) -> TrainingPlan:
    init = flags["init"] and config.resolve_model(flags["init"], "draft", "--init")
    resolved = {"target": config.resolve_model(flags["target"], "target"), "init": init, "cpus": available_cpus()}
    texts = tuple(text for file in prompts for text in _texts(file))
    return TrainingPlan(**flags | resolved, texts=texts, tests=tuple(_texts(BUILTIN)))


def _show(spinner: render.Spinner, at: Progress) -> None:
    if at.phase == EXPECTED:
        spinner.show("")
        render.say(at.text)
        return
    over = "" if at.share is None else f" {at.share:.0%}"
    left = "" if at.seconds_left is None else f", {render.duration(at.seconds_left * 1000)} left"
    spinner.show(f"{at.phase}{over}: {at.text}{left}")


def _tell(plan: TrainingPlan, result: TrainingResult, as_json: bool) -> None:
    """Write the draft's card; print what came out."""
    (Path(plan.out) / "README.md").write_text(card(plan, result), "utf-8")
    found, chains = rows(result), lengths(result)
    if as_json:
        facts = {name: value for name, value in render.plain(result).items() if name not in ("before", "after")}
        chained = {f"{t:g}": {"before": was, "after": now} for t, (was, now) in chains.items()}
        said = {"directory": plan.out, "verdict": verdict(result), "tokens_per_round": chained, "agreement": found}
        render.print_json({**said, **facts})
        return
    made = render.table(">temperature", ">agreement before", ">after", ">tokens per round before", ">after")
    for row in found:
        if row.task == ALL:
            chain = (f"{length:.2f}" for length in chains[row.temperature])
            made.add_row(f"{row.temperature:g}", f"{row.before[0]:.3f}", f"{row.after[0]:.3f}", *chain)
    render.print_table(made)
    size = f"{result.parameters / 1e6:.2f}M parameters"
    print(f"wrote {plan.out}: shape {result.shape}, {size}; use it with --draft {plan.out}")
    if result.depths:
        print(agreement(result.depths))
    print(verdict(result))


def _texts(file: str) -> list[Text]:
    """The first turns of a suite, or the lines of any other file."""
    if file == BUILTIN or Path(file).suffix in (".jsonl", ".ndjson"):
        return [Text(prompt.task, prompt.turns[0]) for prompt in load_suite(file)]
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{file} cannot be read ({reason}): give --prompts a file of prompts") from None
    return [Text(Path(file).stem, line) for line in lines if line.strip()]
