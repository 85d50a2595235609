"""The picture of a map: what was measured, and beside it what the model says of other pairs, for one stream."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from duoactor.bench.places import FAR, HOST, INLINE, PAYS, DraftPlace
from tools.speedups.map import AGREEMENTS, RATIOS, PayMap, grid

WIDE, HIGH, GAP, TOP = 32, 20, 14, 74  # px; width and height of a cell
MEASURED_AT = 112  # px from the left
SHOWN = (INLINE, HOST, FAR[1], FAR[3])
MOST = 3.0  # speed-up of the strongest colour
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:9.5px}.title{font-size:13px;font-weight:600}"
    ".back{fill:#fff}.own{fill:none;stroke:#c0392b;stroke-width:1.6}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.own{stroke:#ff7b72}}"
)


def svg(found: PayMap) -> str:
    """White or dark as the reader's screen is."""
    model_at = MEASURED_AT + WIDE * len({cell.streams for cell in found.measured}) + 48
    wide = model_at + len(SHOWN) * (WIDE * len(RATIOS) + GAP)
    high = TOP + max(len(dict.fromkeys(cell.place for cell in found.measured)), len(AGREEMENTS) + 2) * HIGH + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" class="back"/>',
        _text(4, 18, "Speed-up over plain decoding, by the place of the draft model", "title"),
        _text(4, 34, _facts(found), "small"),
        _text(4, TOP - 24, "measured"),
        _text(model_at, TOP - 24, "one stream, by the model: agreement up, c to the right"),
        *_measured(found),
    ]
    for at, agreement in enumerate(reversed(AGREEMENTS)):
        parts.append(_text(model_at - 28, TOP + HIGH * at + 14, f"{agreement:.0%}", "small"))
    for number, place in enumerate(SHOWN):
        parts += _field(found, place, model_at + number * (WIDE * len(RATIOS) + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _facts(found: PayMap) -> str:
    median, largest = found.error()
    target, draft = (str(found.models.get(name, "")) for name in ("target", "draft"))
    return (
        f"{target}, {draft}: a forward of {found.forward_us[0][1] / 1000:.1f} ms is c = {found.ratio:.0f} draft steps; "
        f"agreement {found.agreement:.0%} (ring). The model is off by {median:.0%} (median), {largest:.0%} at most."
    )


def _measured(found: PayMap) -> Iterator[str]:
    """A line for each place, a column for each batch size."""
    batches = sorted({cell.streams for cell in found.measured})
    places = list(dict.fromkeys(cell.place for cell in found.measured))
    yield from (_text(MEASURED_AT + WIDE * at, TOP - 6, f"× {batch}", "small") for at, batch in enumerate(batches))
    yield from (_text(4, TOP + HIGH * row + 14, place) for row, place in enumerate(places))
    for cell in found.measured:
        x, y = MEASURED_AT + WIDE * batches.index(cell.streams), TOP + HIGH * places.index(cell.place)
        yield from _cell(x, y, cell.speedup, f"{cell.speedup:.2f}")


def _field(found: PayMap, place: DraftPlace, left: float) -> Iterator[str]:
    yield _text(left, TOP - 6, place.name)
    for at, ratio in enumerate(RATIOS):
        yield _text(
            left + WIDE * at + 5,
            TOP + HIGH * len(AGREEMENTS) + 12,
            f"c={ratio:g}" + "+" * (ratio == RATIOS[-1]),
            "small",
        )
    for ratio, agreement, speedup in grid(found.costs(), place):
        x, y = left + WIDE * RATIOS.index(ratio), TOP + HIGH * _row(agreement)
        yield from _cell(x, y, speedup, f"{speedup:.1f}" if speedup >= PAYS else "–")
    x = left + WIDE * min(range(len(RATIOS)), key=lambda at: abs(RATIOS[at] / found.ratio - 1))
    y = TOP + HIGH * _row(min(AGREEMENTS, key=lambda share: abs(share - found.agreement)))
    yield f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" rx="8" class="own"/>'


def _row(agreement: float) -> int:
    return len(AGREEMENTS) - 1 - AGREEMENTS.index(agreement)


def _cell(x: float, y: float, speedup: float, text: str) -> Iterator[str]:
    """Green from none at 1 to all at ``MOST``, red where it is slower."""
    share = min(1.0, max(0.06, abs(speedup - 1) / (MOST - 1)))
    colour = "#d1495b" if speedup < 1 else "#2ea062"
    yield f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" fill="{colour}" fill-opacity="{share:.2f}"/>'
    yield _text(x + 5, y + 14, text, "small")


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{escape(text)}</text>'
