"""What changed between two results of ``duoactor bench``, and whether it is more than noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duoactor.bench.results import Results, Settings
from duoactor.bench.summary import AVERAGE, Cell, Line, summarize
from duoactor.bench.tables import Table


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both. ``beyond`` is True when the two spreads do not meet; None when a spread is not known."""

    method: str
    task: str
    before: Cell
    after: Cell

    @property
    def ratio(self) -> float:
        return self.after.speedup / self.before.speedup

    @property
    def beyond(self) -> bool | None:
        if min(len(self.before.by_repeat), len(self.after.by_repeat)) < 2:
            return None
        return self.after.low > self.before.high or self.after.high < self.before.low


@dataclass(frozen=True, slots=True)
class Comparison:
    settings: tuple[tuple[str, str, str], ...]  # name, before, after: what was not the same
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    texts: tuple[tuple[str, int, int], ...]  # method, differing texts before and after


def compare(before: Results, after: Results) -> Comparison:
    old, new = ({line.name: line for line in summarize(r) if line.cells} for r in (before, after))
    both = [name for name in old if name in new]
    return Comparison(
        settings=_settings(before, after),
        changes=tuple(
            Change(old[name].label, task, old[name].cells[task], new[name].cells[task])
            for name in both
            for task in (AVERAGE, *before.settings.tasks)
            if task in old[name].cells and task in new[name].cells and name != "vanilla"
        ),
        only_before=tuple(line.label for name, line in old.items() if name not in new),
        only_after=tuple(line.label for name, line in new.items() if name not in old),
        texts=_texts(old, new),
    )


def _settings(before: Results, after: Results) -> tuple[tuple[str, str, str], ...]:
    found = []
    for name in Settings.__struct_fields__:
        was, now = str(getattr(before.settings, name)), str(getattr(after.settings, name))
        if was != now:
            found.append((name, was or "none", now or "none"))
    for kind in ("machine", "versions"):
        old, new = getattr(before, kind), getattr(after, kind)
        found += [
            (name, str(old.get(name, "none")), str(new.get(name, "none")))
            for name in dict.fromkeys((*old, *new))
            if old.get(name) != new.get(name) and name != "load"
        ]
    return tuple(found)


def _texts(old: dict[str, Line], new: dict[str, Line]) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (line.label, line.different, new[name].different)
        for name, line in old.items()
        if name in new and line.different != new[name].different
    )


def table(found: Comparison) -> Table:
    """Speed-ups side by side; those beyond the spread stand out."""
    rows = tuple(
        (
            change.method,
            change.task,
            f"{change.before.speedup:.2f}",
            f"{change.after.speedup:.2f}",
            f"{change.ratio:.2f}",
            {True: "yes", False: "no", None: "one repeat"}[change.beyond],
        )
        for change in found.changes
    )
    bold = frozenset((r, 4) for r, change in enumerate(found.changes) if change.beyond)
    columns = ("method", "task", "speed-up before", "after", "ratio", "beyond the spread")
    return Table("Speed-up over vanilla, end to end", columns, rows, bold)


def sentences(found: Comparison) -> list[str]:
    """What the table does not say."""
    said = [f"{name} was {before}, is {after}" for name, before, after in found.settings]
    said += [f"{name} has figures only in the first" for name in found.only_before]
    said += [f"{name} has figures only in the second" for name in found.only_after]
    said += [f"{name}: {before} differing texts, now {after}" for name, before, after in found.texts]
    return said


def document(found: Comparison) -> dict[str, Any]:
    """The comparison for ``--json``."""
    return {
        "settings": [{"name": name, "before": old, "after": new} for name, old, new in found.settings],
        "changes": [
            {
                "method": change.method,
                "task": change.task,
                "before": change.before.speedup,
                "after": change.after.speedup,
                "ratio": change.ratio,
                "beyond_spread": change.beyond,
            }
            for change in found.changes
        ],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "differing_texts": [{"method": name, "before": old, "after": new} for name, old, new in found.texts],
    }
