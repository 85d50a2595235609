"""``report.md``: what was measured, how, on what, with every table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duoactor.bench import tables
from duoactor.bench.figures import NO_MATPLOTLIB, Figure, available, draw_all
from duoactor.bench.gain import in_short, where_from
from duoactor.bench.methods import VANILLA
from duoactor.bench.provenance import source
from duoactor.bench.results import DOCUMENT, Document, Results, write_document
from duoactor.bench.summary import AVERAGE, Line, summarize
from duoactor.bench.tables import Table, name_of

REPORT = "report.md"

DEFINITIONS = """\
- **End-to-end tokens/s**: output tokens over the client's wall clock from sending the request to its last token,
  prefill included; of a task, all its answers' tokens over all their time. **Decode tokens/s**: the same without the
  first token and the time to it.
- **Speed-up φ** (in brackets): a method's tokens/s over vanilla's on the same prompts in the same repeat. The median
  over the repeats is shown. The average is the mean of the tasks' φ.
- Methods take turns: each prompt is answered by every method before the next prompt, in an order that changes. One
  untimed answer of each method comes first. In a conversation each method goes on with its own answers.
- What the controller learns from one row decides nothing for another, also where they differ only in γ or in the number
  of sequences. Rows share the processes, and with them what is true of machine and models alone: the running
  correction of the forward's time, the time of a draft step and of a message, and the draft model's calibration.
- The rows named `transformers` are stock `generate` in a process of its own, with the same weights, type, device,
  threads and cores, timed inside that process; it sleeps while others run. `assisted` has the draft model in the same
  process and on the same cores.
- Texts are compared token by token with vanilla's first repeat; a row whose texts differ says so."""


def write_all(results: Results, directory: Path) -> list[Figure]:
    """``results.json``, the pictures and ``report.md``; returns the pictures."""
    write_document(directory / DOCUMENT, results)
    figures = draw_all(results, directory) if available() else []
    (directory / REPORT).write_text(markdown(results, figures), encoding="utf-8")
    return figures


def markdown(results: Results, figures: Sequence[Figure]) -> str:
    minutes = sum(run.total_ms for run in results.runs) / 60_000
    facts = facts_of(results, f"{results.repeats}; all answers together took {minutes:.1f} minutes")
    return page("duoactor bench", facts, verdict(results), DEFINITIONS, all_tables(results), figures, source(results))


def all_tables(results: Results) -> list[Table]:
    """Everything that the report shows, in its order; what was not measured is left out."""
    lines, tasks = summarize(results), results.settings.tasks
    several = len(lines) > 1 or any(line.name != VANILLA for line in lines)
    found = [
        tables.speeds(lines, tasks, tables.end_to_end, "Table 1: end-to-end tokens/s (speed-up over vanilla)"),
        tables.speeds(
            lines, tasks, tables.decode_only, "Table 1b: decode tokens/s, first token to last (speed-up over vanilla)"
        ),
        tables.latency(lines, tasks) if several else None,
        tables.drafts(lines),
        where_from(results),
        tables.times(lines),
        tables.static_against_dynamic(lines, tasks),
        tables.gamma_sweep(results),
        tables.confusion(results),
    ]
    return [table for table in found if table is not None and table.rows]


def page(
    title: str,
    facts: str,
    said: Sequence[str],
    definitions: str,
    shown: Sequence[Table],
    figures: Sequence[Figure],
    made_by: str,
) -> str:
    """A report in Markdown. ``said``: the short answers."""
    parts = [f"# {title}", facts]
    if said:
        parts.append("## In short\n\n" + "\n".join(f"- {one}" for one in said))
    parts.append("## How to read it\n\n" + definitions)
    for table in shown:
        parts += [f"## {table.title}", table.markdown(), table.note, f"<sub>{made_by}</sub>"]
    if figures:
        parts += ["## Figures", *(f"![{one.caption}]({one.file})\n\n{one.caption}" for one in figures)]
    elif not available():
        parts.append("## Figures\n\n" + NO_MATPLOTLIB[0].upper() + NO_MATPLOTLIB[1:] + ".")
    return "\n\n".join(part for part in parts if part) + "\n"


def facts_of(results: Document, repeats: str) -> str:
    s = results.settings
    count = "prompts" if s.prompts != 1 else "prompt"
    facts = {
        "command": f"`{results.command}`",
        "suite": f"{s.suite}: {s.prompts} {count} of {', '.join(s.tasks)} (digest {s.suite_digest})",
        "models": f"target {_model(results, 'target')}, draft {_model(results, 'draft')}",
        "target's device": f"{results.models.get('device', s.device)}, {results.models.get('dtype', s.dtype)}",
        "sampling": f"temperature {s.temperature:g}, at most {s.max_tokens} tokens, seed {s.seed}",
        "repeats": repeats,
        "machine": ", ".join(f"{name} {value}" for name, value in results.machine.items()),
        "versions": ", ".join(f"{name} {value}" for name, value in results.versions.items()),
    }
    if s.datastore:
        facts["datastore"] = s.datastore + " (auto uses it too)"
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    for model, origin in results.inflated.items():
        lines.append(f"- **inflated**: {_inflated(model, origin)}")
    if not results.complete:
        lines.append("- **Incomplete**: the run was interrupted; figures are of what was finished.")
    return "\n".join(lines)


def _inflated(model: str, origin: Any) -> str:
    if not isinstance(origin, dict):
        return f"{model} computes a smaller model's function at a larger model's cost"
    small, large = (float(origin.get(key) or 0) / 1e6 for key in ("source_parameters", "parameters"))
    return (
        f"{model} computes the function of {origin.get('source', 'a smaller model')} ({small:.0f}M parameters) at the "
        f"cost of {large:.0f}M; acceptance is the small pair's, cost is the large model's"
    )


def _model(results: Document, kind: str) -> str:
    """Its name; of a directory the last part: where it lies is nobody's business."""
    name = str(results.models.get(kind, getattr(results.settings, kind)))
    return Path(name).name if Path(name).is_absolute() else name


def verdict(results: Results) -> list[str]:
    """The plain answer: what wins, what loses, what is not equal."""
    measured = [line for line in summarize(results) if line.cells and line.name != VANILLA]
    lines = [line for line in measured if not line.rested]
    if not lines:
        return []
    ranked = sorted(lines, key=lambda line: -line.cells[AVERAGE].speedup)
    fastest = ranked[0].cells[AVERAGE].speedup
    said = [
        f"Fastest on average: {ranked[0].label}, {fastest:.2f} times vanilla."
        if fastest >= 1
        else f"Nothing is faster than vanilla on average; {ranked[0].label} comes nearest ({fastest:.2f})."
    ]
    slower = [f"{line.label} ({line.cells[AVERAGE].speedup:.2f})" for line in ranked if line.cells[AVERAGE].speedup < 1]
    if slower:
        said.append(f"Slower than vanilla on average: {', '.join(slower)}.")
    said.append(_losses(ranked))
    said.append(in_short(results))
    said += [f"**{name_of(line)}**: its figures are not the method's." for line in measured if line.rested]
    differing = [f"{line.label} ({line.different} of {line.compared})" for line in measured if line.different]
    compared = sum(line.compared for line in measured)
    if differing:
        said.append(f"**Texts that differ from vanilla's**: {', '.join(differing)}.")
    elif compared:
        said.append(f"All {compared} compared texts are identical to vanilla's.")
    return [one for one in said if one]


def _losses(ranked: Sequence[Line]) -> str:
    """Tasks where the best method on average is not the best."""
    first = ranked[0]
    beaten = []
    for task, cell in first.cells.items():
        winner = max((line for line in ranked if task in line.cells), key=lambda line: line.cells[task].speedup)
        if task == AVERAGE or (winner is first and cell.speedup >= 1):
            continue
        best = winner.cells[task].speedup
        label, best = (winner.label, best) if best >= 1 else (VANILLA, 1.0)
        beaten.append(f"{task} ({label} {best:.2f}, it {cell.speedup:.2f})")
    return f"It is beaten on {'; '.join(beaten)}." if beaten else ""
