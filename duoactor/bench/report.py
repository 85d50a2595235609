"""Reports: ``report.md``, and tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duoactor import render
from duoactor.bench.methods import VANILLA
from duoactor.bench.provenance import source
from duoactor.bench.results import DOCUMENT, Results, write_document
from duoactor.bench.streams import StreamsLine, summarize_streams
from duoactor.bench.summary import AVERAGE, MethodLine, Speed, summarize

REPORT = "report.md"
NARROW = 80  # characters of a table without a legend

DEFINITIONS = """\
- **tokens/s**: output tokens over the client's wall clock from sending the request to its last token, prefill
  included. **Speed-up** (in brackets): over vanilla on the same prompts in the same repeat; the median over the
  repeats. The average is the mean of the tasks' speed-ups; *decode*: the same without first tokens.
- Methods take turns: each prompt is answered by every method before the next prompt, in an order that changes. One
  untimed answer of each method comes first. In a conversation each method continues its own answers.
- The rows named `transformers` are stock `generate` in a process of its own, with the same weights, type, device,
  threads and cores, timed inside that process; it sleeps while others run.
- Texts are compared token by token with vanilla's first repeat; a row with texts that differ says so."""
STREAMS_DEFINITIONS = """\
- Each stream sends its next request when the last has ended. **tokens/s** are of all streams together, while all are at
  work. **Speed-up**: over vanilla in the same repeat; the median of the repeats, their lowest and highest.
- **First token**: from sending the request. **Pause**: between two chunks of an answer. Median, 95th and 99th
  percentile, in ms."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table for Markdown and the terminal. ``bold``: (row, column) of the best cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rows = [
            line([f"**{cell}**" if (r, c) in self.bold else cell for c, cell in enumerate(row)])
            for r, row in enumerate(self.rows)
        ]
        ruler = "|---|" + "---:|" * (len(self.columns) - 1)
        return "\n".join([line(self.columns), ruler, *rows])

    def show(self, width: int = render.UNBOUNDED) -> None:
        """Print the columns that fit the terminal and ``width`` characters. A star marks what Markdown has in bold."""
        print(f"{self.title}\n")
        made = render.table(self.columns[0], *(f">{name}" for name in self.columns[1:]))
        made.columns[0].no_wrap = False  # figures stay whole on a narrow terminal
        for r, row in enumerate(self.rows):
            made.add_row(*(f"{cell} *" if (r, c) in self.bold else cell for c, cell in enumerate(row)))
        render.print_table(made, self.columns[:4:-1], width)
        print()


def write_all(results: Results, directory: Path) -> None:
    """``results.json`` and ``report.md``."""
    write_document(directory / DOCUMENT, results)
    (directory / REPORT).write_text(markdown(results), encoding="utf-8")


def show(results: Results, directory: Path | None = None) -> None:
    """Print the main table and the short answers. Columns beyond ``NARROW`` need the report in ``directory``."""
    (streams(results) if results.loads else details(results)).show(render.UNBOUNDED if directory else NARROW)
    for sentence in verdict(results):
        print(sentence.replace("**", ""))
    if directory is not None:
        print(f"By task, with the meaning of each column: {directory / REPORT}", flush=True)


def markdown(results: Results) -> str:
    tables = [streams(results)] if results.loads else [speeds(results), details(results)]
    parts = ["# duoactor bench", _facts(results)]
    if said := verdict(results):
        parts.append("## In short\n\n" + "\n".join(f"- {one}" for one in said))
    parts.append("## How to read it\n\n" + (STREAMS_DEFINITIONS if results.loads else DEFINITIONS))
    for table in tables:
        parts += [f"## {table.title}", table.markdown(), table.note, f"<sub>{source(results)}</sub>"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(results: Results) -> str:
    s, models = results.settings, results.models
    facts = {
        "command": f"`{results.command}`",
        "suite": f"{s.suite}: {s.prompts} prompts of {', '.join(s.tasks)} (digest {s.suite_digest})",
        "models": f"target {model_name(models, 'target')}, draft {model_name(models, 'draft')}",
        "target's device": f"{models.get('device', '?')}, {models.get('dtype', '?')}",
        "sampling": f"temperature {s.temperature:g}, at most {s.max_tokens} tokens, seed {s.seed}",
        "repeats": str(results.repeats),
        "machine": ", ".join(f"{name} {value}" for name, value in results.machine.items()),
        "versions": ", ".join(f"{name} {value}" for name, value in results.versions.items()),
    }
    if s.datastore:
        facts["datastore"] = s.datastore + " (auto uses it too)"
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    lines += [f"- **inflated**: {inflation(model, origin)}" for model, origin in results.inflated.items()]
    if not results.complete:
        lines.append("- **Incomplete**: the run was interrupted; figures are of what was finished.")
    return "\n".join(lines)


def inflation(model: str, origin: Any) -> str:
    """What an inflated ``model`` is; ``origin``: as :func:`duoactor.bench.provenance.inflated` finds it."""
    if not isinstance(origin, dict):
        return f"{model} computes a smaller model's function at a larger model's cost"
    small, large = (float(origin.get(key) or 0) / 1e6 for key in ("source_parameters", "parameters"))
    return (
        f"{model} writes what {origin.get('source', 'a smaller model')} ({small:.0f}M parameters) writes, at the cost "
        f"of {large:.0f}M: drafts are right as often as the small pair's, and a round takes as long as a large model's"
    )


def model_name(models: dict[str, Any], kind: str) -> str:
    """The model's name; of a directory the last part, since reports are published."""
    name = str(models.get(kind, "?"))
    return Path(name).name if Path(name).is_absolute() else name


def speeds(results: Results) -> Table:
    """Tokens/s and speed-up by method and task (the paper's tables 1 to 3)."""
    lines, columns = summarize(results), (*results.settings.tasks, AVERAGE)
    winners = {task: _best(lines, task) for task in columns}
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for r, line in enumerate(lines):
        if not line.cells:
            rows.append((line.label, line.missing, *("" for _ in columns)))
            continue
        shown = [
            f"{cell.tokens_per_second:.0f} ({cell.speedup:.2f}x)" if (cell := line.cells.get(task)) else "-"
            for task in columns
        ]
        rows.append((_marked(line), *shown, _spread(line.cells[AVERAGE], results)))
        bold |= {(r, c) for c, task in enumerate(columns, start=1) if winners[task] == line.name}
    note = "repeats: lowest and highest average speed-up among the repeats. The best is marked."
    title = "End-to-end tokens/s (speed-up over vanilla)"
    return Table(title, ("method", *columns, "repeats"), tuple(rows), frozenset(bold), note)


def details(results: Results) -> Table:
    """Speed, what was drafted, and where the time of a round went. The most important columns come first."""
    columns = (
        "method", "tokens/s", "speed-up", "repeats", "first token", "tokens/round", "waiting", "acceptance rate",
        "decode", "foreseen", "γ", "k", "round", "verifying", "overhead",
    )  # fmt: skip
    lines = summarize(results)
    winner = _best(lines, AVERAGE)
    rows: list[tuple[str, ...]] = []
    for line in lines:
        cell, work = line.cells.get(AVERAGE), line.work
        if cell is None:
            rows.append((line.label, line.missing, *("" for _ in columns[2:])))
            continue
        row = [_marked(line), f"{cell.tokens_per_second:.0f}", f"{cell.speedup:.2f}x", _spread(cell, results)]
        row.append(f"{line.ttft_ms:.0f} ms ({line.ttft_ratio:.2f}x)")
        decode = f"{line.decode_speedup:.2f}x"
        if work is None:
            rows.append((*row, "-", "-", "-", decode, *("-" for _ in columns[9:])))
            continue
        drafts = work.mean_acceptance_length > 1
        row += [f"{work.mean_acceptance_length:.2f}", f"{work.wait_ms / work.round_ms:.0%}"]
        row += [f"{work.acceptance_rate:.2f}" if drafts else "-", decode, f"{work.foreseen:.0%}" if drafts else "-"]
        row += [f"{work.gamma:.1f}" if drafts else "-", f"{work.sequences:.2f}" if work.sequences else "-"]
        rows.append((*row, *(f"{ms:.2f} ms" for ms in (work.round_ms, work.forward_ms, work.overhead_ms))))
    bold = frozenset((r, 2) for r, line in enumerate(lines) if line.name == winner)
    note = (
        "first token: median, and over vanilla's. tokens/round: 1 + accepted draft tokens over rounds. waiting: share "
        "of a round in which the target waits for drafts. decode: speed-up without first tokens. foreseen: rounds at "
        "whose end the next drafts were there, a hit of SSD's speculation cache. γ and k: means per round and phase."
    )
    return Table("Average of the tasks, end to end", columns, tuple(rows), bold, note)


def streams(results: Results) -> Table:
    """Throughput and latency by number of streams."""
    columns = ("streams", "method", "tokens/s", "speed-up", "repeats", "first token, ms", "pause, ms")
    rows = tuple(
        (
            str(line.streams),
            _marked(line),
            f"{line.tokens_per_second:.0f}",
            f"{line.speedup:.2f}x",
            f"{line.low:.2f}-{line.high:.2f}" if results.repeats > 1 else "one",
            " / ".join(f"{ms:.0f}" for ms in line.first_ms) or "-",
            " / ".join(f"{ms:.0f}" for ms in line.pause_ms) or "-",
        )
        for line in summarize_streams(results)
    )
    note = "Percentiles: median / 95th / 99th."
    return Table("Many streams at once", columns, rows, note=note)


def _best(lines: Sequence[MethodLine], task: str) -> str:
    there = [line for line in lines if task in line.cells]
    return max(there, key=lambda line: line.cells[task].speedup).name if there else ""


def _marked(line: MethodLine | StreamsLine) -> str:
    marks = [f"{line.different} of {line.compared} texts DIFFER"] * bool(line.different)
    marks += [f"{line.failed} answers failed"] * bool(line.failed)
    return line.label + (f" ({'; '.join(marks)})" if marks else "")


def _spread(cell: Speed, results: Results) -> str:
    return f"{cell.low:.2f}-{cell.high:.2f}" if results.repeats > 1 else "one"


def verdict(results: Results) -> list[str]:
    """The plain answer: what wins, what loses, what is not equal."""
    if results.loads:
        crowds = summarize_streams(results)
        slower = [f"{one.label} with {one.streams} ({one.speedup:.2f})" for one in crowds if one.speedup < 1]
        return [*([f"Slower than vanilla: {', '.join(slower)}."] if slower else []), *_equal(crowds)]
    lines = [line for line in summarize(results) if line.cells and line.name != VANILLA]
    if not lines:
        return []
    ranked = sorted(lines, key=lambda line: -line.cells[AVERAGE].speedup)
    fastest = ranked[0].cells[AVERAGE].speedup
    said = [
        f"Fastest on average: {ranked[0].label}, {fastest:.2f} times vanilla."
        if fastest >= 1
        else f"Nothing is faster than vanilla on average; {ranked[0].label} comes nearest ({fastest:.2f})."
    ]
    losers = [f"{line.label} ({cell.speedup:.2f})" for line in ranked if (cell := line.cells[AVERAGE]).speedup < 1]
    if losers:
        said.append(f"Slower than vanilla on average: {', '.join(losers)}.")
    return [*said, *_losses(ranked), *_equal(lines)]


def _equal(lines: Sequence[MethodLine | StreamsLine]) -> list[str]:
    differing = [f"{line.label} ({line.different} of {line.compared})" for line in lines if line.different]
    if differing:
        return [f"**Texts that differ from vanilla's**: {', '.join(differing)}."]
    compared = sum(line.compared for line in lines)
    if compared == 1:
        return ["The compared text is identical to vanilla's."]
    return [f"All {compared} compared texts are identical to vanilla's."] if compared else []


def _losses(ranked: Sequence[MethodLine]) -> list[str]:
    """Tasks where the best method on average is not the best."""
    first, beaten = ranked[0], []
    if len(first.cells.keys() - {AVERAGE}) < 2:
        return []
    for task, cell in first.cells.items():
        winner = max((line for line in ranked if task in line.cells), key=lambda line: line.cells[task].speedup)
        if task == AVERAGE or (winner is first and cell.speedup >= 1):
            continue
        best = winner.cells[task].speedup
        label, best = (winner.label, best) if best >= 1 else (VANILLA, 1.0)
        beaten.append(f"{task} ({label} {best:.2f}, it {cell.speedup:.2f})")
    return [f"It is beaten on {'; '.join(beaten)}."] if beaten else []
