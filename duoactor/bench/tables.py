"""The paper's tables as rows of text: for a terminal (rich) and for ``report.md`` (Markdown)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duoactor import render
from duoactor.bench.methods import DYNAMIC, STATIC
from duoactor.bench.results import Results
from duoactor.bench.summary import AVERAGE, MIN_DRAFTING, Cell, Line, best, line_of, total_needed

Cells = Callable[[Line], dict[str, Cell]]
SPREADS = (
    "repeats: lowest and highest average φ among the repeats; prompts: quartiles of the single prompts' φ. The best is "
    "marked."
)


@dataclass(frozen=True, slots=True)
class Table:
    """``bold`` are (row, column) of cells that stand out."""

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

    def show(self) -> None:
        """Print it on the terminal."""
        print(f"{self.title}\n")
        made = render.table(self.columns[0], *(f">{name}" for name in self.columns[1:]))
        made.columns[0].no_wrap = False  # on a narrow terminal figures stay whole
        for r, row in enumerate(self.rows):
            made.add_row(*(_styled(cell, (r, c) in self.bold) for c, cell in enumerate(row)))
        render.print_table(made)
        if self.note:
            print(self.note)
        print()


def _styled(cell: str, bold: bool) -> str:
    # a star, since bold is not seen in a pipe
    return f"{cell} *" if bold else cell


def end_to_end(line: Line) -> dict[str, Cell]:
    return line.cells


def decode_only(line: Line) -> dict[str, Cell]:
    return line.decode


def name_of(line: Line) -> str:
    """What a row may be called: a method that rested is not called by its name alone."""
    if line.rested and line.work is not None and line.work.drafting is not None:
        return f"not {line.label}: rested in {1 - line.work.drafting:.0%} of rounds"
    return line.label


def speeds(lines: Sequence[Line], tasks: Sequence[str], cells: Cells, title: str) -> Table:
    """Table 1: tokens/s and φ by method and task."""
    columns = (*tasks, AVERAGE)
    winners = {task: best(lines, task, cells) for task in columns}
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for r, line in enumerate(lines):
        found = cells(line)
        if not found:
            rows.append((line.label, line.missing, *("" for _ in columns[1:]), "", ""))
            continue
        shown = [_speed(found[task]) if task in found else "-" for task in columns]
        rows.append((_marked(line), *shown, _spread(found[AVERAGE]), f"{line.prompts[0]:.2f}-{line.prompts[1]:.2f}"))
        bold |= {(r, c) for c, task in enumerate(columns, start=1) if winners[task] == line.name}
    return Table(title, ("method", *columns, "repeats", "prompts"), tuple(rows), frozenset(bold), SPREADS)


def _marked(line: Line) -> str:
    marks = [f"{line.different} of {line.compared} texts DIFFER"] * bool(line.different)
    marks += [f"{line.failed} answers failed"] * bool(line.failed)
    return name_of(line) + (f" ({'; '.join(marks)})" if marks else "")


def overview(lines: Sequence[Line]) -> Table:
    """What fits a terminal; the report has the rest."""
    columns = ("method", "tokens/s", "speed-up", "repeats", "tokens/round", "waits", "drafts")
    winner = best(lines, AVERAGE, end_to_end)
    rows: list[tuple[str, ...]] = []
    for line in lines:
        cell, work = line.cells.get(AVERAGE), line.work
        if cell is None:
            rows.append((line.label, line.missing, "", "", "", "", ""))
            continue
        own = (
            (f"{work.mean_acceptance_length:.2f}", f"{work.waiting:.0%}", _share(work.at_work))
            if work is not None
            else ("-", "-", "-")
        )
        rows.append((_marked(line), f"{cell.tokens_per_second:.0f}", f"{cell.speedup:.2f}x", _spread(cell), *own))
    bold = frozenset((r, 2) for r, line in enumerate(lines) if line.name == winner)
    note = (
        "*: the fastest; waits: share of the time from the first token on; drafts: share of the rounds with the "
        "drafter at work."
    )
    return Table("Average of the tasks, end to end", columns, tuple(rows), bold, note)


def _speed(cell: Cell) -> str:
    return f"{cell.tokens_per_second:.0f} ({cell.speedup:.2f}x)"


def _spread(cell: Cell) -> str:
    return f"{cell.low:.2f}-{cell.high:.2f}" if len(cell.by_repeat) > 1 else "only one"


def latency(lines: Sequence[Line], tasks: Sequence[str]) -> Table:
    """Figure 3 in figures."""
    rows = tuple(
        (
            name_of(line),
            f"{line.ttft_ms:.1f}",
            f"{line.ttft_ratio:.2f}",
            f"{line.ttft_low:.2f}-{line.ttft_high:.2f}",
            *(f"{line.ttft_by_task[task]:.2f}" if task in line.ttft_by_task else "-" for task in tasks),
        )
        for line in lines
        if line.cells
    )
    return Table("Time to first token", ("method", "median ms", "vanilla = 1", "quartiles", *tasks), rows)


def drafts(lines: Sequence[Line]) -> Table:
    """What was drafted, and what came of it."""
    columns = (
        "method", "tokens/round", "acceptance rate", "drafted", "accepted", "γ", "k", "verify drafts",
        "drafter at work", "either",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for line in lines:
        found = line.work
        if found is None:
            continue
        some = bool(found.drafted)
        rows.append(
            (
                name_of(line),
                f"{found.mean_acceptance_length:.2f}",
                f"{found.acceptance_rate:.2f}" if some else "-",
                str(found.drafted),
                str(found.accepted),
                f"{found.gamma:.1f}" if some else "-",
                f"{found.sequences:.2f}" if found.sequences else "-",
                _share(found.verifying_drafts),
                _share(found.at_work),
                _share(found.drafting),
            )
        )
    note = (
        "tokens/round: mean acceptance length, 1 + accepted tokens over rounds; drafted: draft tokens that were "
        "verified; γ and k: means of what was asked of the drafter, or, where nothing was, of the window; verify "
        "drafts, drafter at work, either: shares of the rounds. A method that drafts, and with neither in more than "
        f"{1 - MIN_DRAFTING:.0%} of its rounds, loses its name."
    )
    return Table("Drafts", columns, tuple(rows), note=note)


def times(lines: Sequence[Line]) -> Table:
    """Where the time of a round went."""
    columns = (
        "method", "round", "verifying", "waiting", "overhead", "verifier busy", "drafter busy", "of it while verifying",
    )  # fmt: skip
    rows = tuple(
        (
            name_of(line),
            f"{work.round_ms:.2f} ms",
            f"{work.verifier_busy * work.round_ms:.2f} ms",
            f"{work.wait_ms:.2f} ms ({work.waiting:.0%})",
            f"{work.overhead_ms:.2f} ms",
            _share(work.verifier_busy),
            _share(work.drafter_busy),
            _share(work.overlap),
        )
        for line in lines
        if (work := line.work) is not None
    )
    note = (
        "Means of a round, from the first token on; busy: share of that time in forwards, each side's measured by "
        "itself; overhead: a round less its forward and its wait."
    )
    return Table("Time", columns, rows, note=note)


def _share(value: float | None) -> str:
    return f"{value:.0%}" if value is not None else "-"


def static_against_dynamic(lines: Sequence[Line], tasks: Sequence[str]) -> Table | None:
    """Table 2."""
    chosen = [line for line in lines if line.name in (*STATIC, DYNAMIC) and line.cells]
    if len(chosen) < 2:
        return None
    return speeds(chosen, tasks, end_to_end, "Table 2: static sequences against dynamic ones")


def gamma_sweep(results: Results) -> Table | None:
    """Table 3. These rows took turns with each other, after all the others."""
    middle = f"{DYNAMIC}@{results.sweep_gamma}"
    names = sorted({run.method for run in results.runs if "@" in run.method}, key=lambda name: int(name.split("@")[1]))
    lines = [line for name in names if (line := line_of(results, name, against=middle)).cells]
    if not lines:
        return None
    rows = tuple(
        (
            name_of(line) + (" (chosen)" if line.name == middle else ""),
            f"{(cell := line.cells[AVERAGE]).tokens_per_second:.1f}",
            f"{cell.speedup:.3f}",
            _spread(cell),
            f"{line.work.mean_acceptance_length:.2f}" if line.work else "-",
            _share(line.work.at_work) if line.work else "-",
        )
        for line in lines
    )
    winner = max(range(len(lines)), key=lambda i: lines[i].cells[AVERAGE].speedup)
    return Table(
        "Table 3: γ around the chosen one",
        ("γ", "tokens/s", "relative to the chosen", "repeats", "tokens/round", "drafter at work"),
        rows,
        frozenset({(winner, 1), (winner, 2)}),
        "The chosen γ is the mean of what the controller asked for in row DuoDecoding, rounded.",
    )


def confusion(results: Results, name: str = DYNAMIC) -> Table | None:
    """Table 4."""
    phases = total_needed(run.cost for run in results.runs if run.method == name and run.cost is not None)
    if not phases:
        return None
    predicted = sorted({k for k, _ in phases})
    needed = [*range(1, max(n for _, n in phases) + 1), 0]  # 0 comes last: more than there were candidates
    total = sum(phases.values())

    def cell(k: int, n: int) -> str:
        return f"{phases.get((k, n), 0)} ({phases.get((k, n), 0) / total:.1%})"

    rows = tuple((str(k), *(cell(k, n) for n in needed)) for k in predicted)
    covered = sum(times for (k, n), times in phases.items() if 0 < n <= k)
    exact = sum(times for (k, n), times in phases.items() if n == k)
    note = (
        f"Drafting phases ({total}) by the number of sequences that the θ rule chose (rows) and the number that was "
        "needed (columns): the rank, among the draft's candidates for the sequences' first token, of the token that "
        f"the target made. The token was among the drafted ones in {covered / total:.0%} of the phases, the last of "
        f"them in {exact / total:.0%}. A phase that ended before its number was decided is not counted."
    )
    bold = frozenset((r, c) for r, k in enumerate(predicted) for c, n in enumerate(needed, start=1) if k == n)
    columns = ("chosen", *(f"needed {n}" if n else "more" for n in needed))
    return Table("Table 4: chosen against needed number of sequences", columns, rows, bold, note)
