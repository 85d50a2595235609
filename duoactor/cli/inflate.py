"""The command that makes a model as costly as a real one out of a small one."""

from __future__ import annotations

import sys
from typing import Any

import click

from duoactor import config, render
from duoactor.cli.options import json_option


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--layers", required=True, type=click.IntRange(1), metavar="N", help="layers of the new model")
@click.option("--hidden", required=True, type=click.IntRange(1), metavar="N", help="hidden size of the new model")
@click.option("--intermediate", default=0, type=click.IntRange(0), metavar="N", help="MLP size; 0: in proportion  [0]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="type of the weights  [SRC's]",
)
@json_option
def inflate(source: str, destination: str, as_json: bool, dtype: str | None, **size: Any) -> None:
    """Write a model that computes SRC at a larger model's cost.

    It adds layers that change nothing and pads matrices with zeros. The text, and how often a draft is accepted, stay
    those of SRC (a model directory, or "bundled"); the time of a forward becomes that of a large model.

    \b
    Example:  duoactor inflate bundled big --layers 32 --hidden 4096 \\
                  --intermediate 11008 --dtype bfloat16
              duoactor bench --target big --device cuda
    """
    from actors.engines.weights.inflate import Size
    from actors.engines.weights.inflate import inflate as write

    with render.Spinner(sys.stderr) as spinner:

        def progress(done: int, size: int) -> None:
            share = f"{done / 1e9:.1f} of {size / 1e9:.1f} GB ({done / max(1, size):.0%})"
            spinner.show(f"writing {destination}: {share}")

        model = config.resolve_model(source, "target", "SRC")
        shape = write(model, destination, Size(**size), dtype, progress=progress)
    document = {"directory": destination, **render.plain(shape), "parameters": shape.parameters}
    line = (
        f"wrote {destination}: {shape.parameters / 1e6:.0f}M parameters, {shape.layers} layers, hidden size "
        f"{shape.hidden}; use it with --target {destination}"
    )
    render.print_done(document, line, as_json)
