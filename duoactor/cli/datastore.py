"""The command that builds a retrieval datastore for method rest and for drafters that retrieve."""

from __future__ import annotations

import sys

import click

from duoactor import config, render
from duoactor.cli.options import json_option


@click.group()
def datastore() -> None:
    """Build datastores of text to retrieve drafts from.

    \b
    Example:  duoactor datastore build store manuals/*.txt
    """


@datastore.command()
@click.argument("out", metavar="OUT")
@click.argument("files", metavar="FILES...", nargs=-1, required=True)
@click.option("--target", default="bundled", metavar="TEXT", help="the model whose tokenizer is used  [bundled]")
@json_option
def build(out: str, files: tuple[str, ...], target: str, as_json: bool) -> None:
    """Build a datastore in directory OUT from text and JSONL files.

    A .jsonl or .ndjson file gives a document per line, any other file one document. Text that resembles what the
    target will write serves best. The model is needed for its tokenizer only.

    \b
    Example:  duoactor datastore build store manuals/*.txt conversations.jsonl
              duoactor verifier --datastore store --method rest
    """
    model = config.resolve_model(target, "target")
    with render.Spinner(sys.stderr) as spinner:
        spinner.show("loading the tokenizer …")
        from actors.engines.text.tokenize_corpus import build_for_model

        def progress(done: int, count: int) -> None:
            spinner.show(f"{done} of {count} files read" + (", sorting …" if done == count else ""))

        meta = build_for_model(out, files, model, progress)
    line = f"wrote {out}: documents {meta.documents}, tokens {meta.tokens}; use it with --datastore {out}"
    render.print_done({"directory": out, "documents": meta.documents, "tokens": meta.tokens}, line, as_json)
