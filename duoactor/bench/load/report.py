"""Tables and ``report.md`` of methods under load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from duoactor.bench.figures import Figure, available
from duoactor.bench.load.arrivals import CLOSED, LONG_EVERY
from duoactor.bench.load.cells import DOCUMENT, LONG_TOKENS, LoadResults
from duoactor.bench.load.figure import draw_loads
from duoactor.bench.load.summary import FEWEST, LoadLine, summarize_load
from duoactor.bench.methods import VANILLA
from duoactor.bench.provenance import source
from duoactor.bench.report import REPORT, facts_of, page
from duoactor.bench.results import write_document
from duoactor.bench.tables import Table

HALF = 0.5  # of its share: less is not fair
ROUNDS = 3.0  # a pause of two rounds of somebody's prompt, and its own

DEFINITIONS = f"""\
- **closed**: so many streams at once, each of which asks again as soon as it was answered. **poisson**, **bursts**:
  requests come by themselves, one by one or as many at once as there would be streams, at the rate at which vanilla
  answered them in the closed loop. Every method gets the same requests; one in {LONG_EVERY} has a prompt of
  {LONG_TOKENS} tokens.
- **tokens/s** of all streams together, prompts included: in the closed loop while every stream is at work, elsewhere
  until the last answer. **speed-up**: over vanilla's in the same repeat, the median of the repeats; below it the lowest
  and the highest.
- **first token**: from sending the request. **pause**: between two chunks of an answer, as its reader sees them.
  Medians, 95th and 99th percentiles, in ms.
- **lowest share**: of every answer's rounds (turns) and tokens, what it had over what it would have had if all that
  decoded at the time had been served alike; of the lowest answer with at least {FEWEST} rounds. Texts that drafts suit
  get more tokens out of the same turns.
- **long prompt**: from the end of one of others' rounds to that of its next while a long prompt was read, the 99th
  percentile and the longest, in rounds: those that vanilla takes on the average with no prompt and as many streams as
  requests were there, those included that waited for their first token. {ROUNDS:.0f} is two rounds of the prompt and
  the stream's own. By the verifier's telemetry, since short rounds share a chunk."""


def write_loads(results: LoadResults, directory: Path) -> list[Figure]:
    """``load.json``, the pictures and ``report.md``; returns the pictures."""
    lines = summarize_load(results)
    write_document(directory / DOCUMENT, results)
    figures = draw_loads(results, directory) if available() and lines else []
    facts, said = facts_of(results, str(results.repeats)), load_verdict(lines)
    text = page("duoactor bench --streams", facts, said, DEFINITIONS, load_tables(lines), figures, source(results))
    (directory / REPORT).write_text(text, encoding="utf-8")
    return figures


def load_tables(lines: Sequence[LoadLine]) -> list[Table]:
    """One for each kind of arrivals."""
    kinds = dict.fromkeys(line.arrivals for line in lines)
    return [_table([line for line in lines if line.arrivals == kind]) for kind in kinds]


def _table(lines: Sequence[LoadLine]) -> Table:
    columns = (
        "streams", "method", "tokens/s", "speed-up", "repeats", "first token, ms", "pause, ms", "lowest share",
        "long prompt", "tokens/round", "drafted", "waits",
    )  # fmt: skip
    rows = tuple(
        (
            str(line.streams) + (f" ({line.rate:.1f}/s)" if line.rate else ""),
            line.label + (f" ({line.failed} FAILED)" if line.failed else ""),
            f"{line.tokens_per_second:.0f}",
            f"{line.speedup:.2f}x",
            f"{line.low:.2f}-{line.high:.2f}",
            _three(line.first_ms),
            _three(line.gap_ms),
            f"{line.lowest_rounds:.2f} ({line.lowest_tokens:.2f})",
            f"{line.stall[2]:.1f}, {line.stall[3]:.1f}" if line.stall else "-",
            f"{line.tokens_per_round:.2f}",
            f"{line.drafted_per_round:.1f} ({line.acceptance:.0%})",
            f"{line.waiting:.0%}",
        )
        for line in lines
    )
    bold = frozenset((r, 3) for r, line in enumerate(lines) if line.name != VANILLA and line.speedup >= 1)
    title = "Closed loop" if lines[0].arrivals == CLOSED else f"Requests that come by themselves: {lines[0].arrivals}"
    return Table(title, columns, rows, bold)


def _three(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values) or "-"


def load_verdict(lines: Sequence[LoadLine]) -> list[str]:
    """The plain answer: who is slower than vanilla where, who was not served, whose text was another."""
    said = []
    for name in dict.fromkeys(line.name for line in lines if line.name != VANILLA):
        mine = [line for line in lines if line.name == name and line.arrivals == CLOSED]
        if not mine:
            continue
        slower = [f"{line.streams} streams ({line.speedup:.2f})" for line in mine if line.speedup < 1]
        said.append(
            f"{mine[0].label} is slower than vanilla with {', '.join(slower)}."
            if slower
            else f"{mine[0].label} is not slower than vanilla with any number of streams: "
            f"{', '.join(f'{line.streams}: {line.speedup:.2f}' for line in mine)}."
        )
    unfair = [f"{_where(line)} ({line.lowest_rounds:.2f})" for line in lines if line.lowest_rounds < HALF]
    said.append(
        f"An answer had less than half of its share of turns: {'; '.join(unfair)}."
        if unfair
        else "No answer had less than half of its share of turns."
    )
    stalled = [f"{_where(line)} ({line.stall[2]:.1f})" for line in lines if line.stall and line.stall[2] > ROUNDS]
    said.append(
        f"Long prompts made one pause in a hundred longer than {ROUNDS:.0f} rounds: {'; '.join(stalled)}."
        if stalled
        else f"While a long prompt was read, 99 of 100 pauses of others were of at most {ROUNDS:.0f} rounds."
    )
    different, compared = sum(line.different for line in lines), sum(line.compared for line in lines)
    said.append(
        f"{different} of {compared} texts differ from vanilla's: batches of other sizes round otherwise."
        if different
        else f"All {compared} compared texts are vanilla's."
    )
    failed = sum(line.failed for line in lines)
    return [*said, *([f"{failed} requests failed."] if failed else [])] if lines else []


def _where(line: LoadLine) -> str:
    return f"{line.label}, {line.streams} streams" + (f", {line.arrivals}" if line.arrivals != CLOSED else "")
