"""The picture of a map: one field of cells for each place and batch size, cost ratio to the right, agreement up."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from duoactor.bench.map import AGREEMENTS, PAYS, PLACES, RATIOS, STREAMS, PayMap

WIDE, HIGH = 34, 20  # px of a cell
LEFT, TOP, GAP = 92, 66, 16
MOST = 3.0  # speed-up of the strongest colour
STYLE = "text{font:11px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:9.5px}.title{font-size:14px;font-weight:600}"


def svg(found: PayMap) -> str:
    field_wide, field_high = WIDE * len(RATIOS), HIGH * len(AGREEMENTS)
    wide = LEFT + len(PLACES) * (field_wide + GAP)
    measured_at = TOP + len(STREAMS) * (field_high + GAP) + 30
    high = measured_at + 18 * (1 + len({cell.place for cell in found.measured})) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
        f"<style>{STYLE}</style><rect width='100%' height='100%' fill='#fff'/>",
        _text(LEFT, 20, "Speed-up over plain decoding, by the place of the draft model", "title"),
        _text(LEFT, 38, _facts(found), "small"),
    ]
    for column, place in enumerate(PLACES):
        left = LEFT + column * (field_wide + GAP)
        parts.append(_text(left, TOP - 8, place.name))
        for row, streams in enumerate(STREAMS):
            top = TOP + row * (field_high + GAP)
            parts += _field(found, place.name, streams, left, top)
            if not column:
                parts.append(_text(4, top + field_high / 2, f"batch {streams}"))
                parts += [
                    _text(LEFT - 24, top + field_high - HIGH * at - 6, f"{agreement:.0%}", "small")
                    for at, agreement in enumerate(AGREEMENTS)
                ]
        parts += [
            _text(left + WIDE * at + 6, measured_at - 32, f"c={ratio:g}", "small") for at, ratio in enumerate(RATIOS)
        ]
    parts += _measured(found, measured_at)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _facts(found: PayMap) -> str:
    median, largest = found.error()
    target, draft = (str(found.models.get(name, "")) for name in ("target", "draft"))
    return (
        f"{target} drafted for by {draft}: a forward of {found.forward_us[0][1] / 1000:.1f} ms, c = {found.ratio:.0f}, "
        f"agreement {found.agreement:.0%} (ring). Model of a round; on the measured cells it is off by {median:.0%} "
        f"(median), {largest:.0%} at most."
    )


def _field(found: PayMap, place: str, streams: int, left: float, top: float) -> Iterator[str]:
    for cell in found.grid:
        if (cell.place, cell.streams) != (place, streams):
            continue
        column, row = RATIOS.index(int(cell.ratio)), AGREEMENTS.index(cell.agreement)
        x, y = left + column * WIDE, top + (len(AGREEMENTS) - 1 - row) * HIGH
        yield f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" fill="{_colour(cell.speedup)}"/>'
        yield _text(x + 7, y + 14, f"{cell.speedup:.1f}" if cell.speedup >= PAYS else "–", "small")
    near = min(range(len(RATIOS)), key=lambda at: abs(RATIOS[at] / found.ratio - 1))
    level = min(range(len(AGREEMENTS)), key=lambda at: abs(AGREEMENTS[at] - found.agreement))
    x, y = left + near * WIDE, top + (len(AGREEMENTS) - 1 - level) * HIGH
    yield (
        f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" rx="8" fill="none" stroke="#c0392b" '
        'stroke-width="1.6"/>'
    )


def _measured(found: PayMap, top: float) -> Iterator[str]:
    """A line for each place: measured, and what the model says in brackets."""
    yield _text(4, top, "measured (model)")
    for number, place in enumerate(dict.fromkeys(cell.place for cell in found.measured), start=1):
        said = []
        for cell in found.measured:
            if cell.place == place:
                model = f" ({cell.model:.2f})" if cell.model else ""
                said.append(f"batch {cell.streams}: {cell.speedup:.2f}{model}, {cell.tokens_per_second:.0f} tokens/s")
        yield _text(4, top + 18 * number, f"{place}:  {';  '.join(said)}")


def _colour(speedup: float) -> str:
    """From white at 1 to green at ``MOST``."""
    share = min(1.0, max(0.0, (speedup - 1) / (MOST - 1)))
    red, green, blue = (round(255 + share * (end - 255)) for end in (46, 160, 98))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{escape(text)}</text>'
