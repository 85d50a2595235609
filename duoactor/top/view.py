"""A picture as lines of text of a terminal's size. No terminal here: text and styles come out."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from duoactor.monitor.picture import Picture, Stream, Strip
from duoactor.render import duration, model_name
from duoactor.top.columns import Column, clean, cut, lane, table
from duoactor.top.dialog import Dialog

HEADING, VERIFY, DRAFT, ALARM, FAINT, CURSOR = "bold", "green", "cyan", "bold red", "dim", "reverse"
ROLES = {"verifier": VERIFY, "drafter": DRAFT, "controller": ""}
NAME = 12  # cells of a lane's name
MAX_LANES = 4  # drafters in the strip: those that drafted most
LEAST_ROWS = 3  # of requests and of actors each, titles included, before the strip gives way


@dataclass(frozen=True, slots=True)
class Glyphs:
    levels: str = " ▁▂▃▄▅▆▇█"
    wait: str = "·"
    ellipsis: str = "…"
    arrows: str = "↑ ↓"
    times: str = "×"


ASCII = Glyphs(" .:|#", "-", "..", "up/down", "x")


def draw(
    picture: Picture, dialog: Dialog, width: int, height: int, scroll: int = 0, glyphs: Glyphs | None = None
) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells. ``scroll``: requests above the first that is shown."""
    glyphs = glyphs or Glyphs()
    head = _head(picture, width, glyphs)
    foot = [_foot(dialog, width, glyphs)]
    room = height - len(head) - len(foot)
    strip = _strip(picture.strip, width, glyphs) if picture.strip else []
    if room < len(strip) + 2 * LEAST_ROWS:
        strip = []
    room -= len(strip)
    streams = min(1 + len(picture.streams), max(LEAST_ROWS, room - 1 - len(picture.actors))) if picture.streams else 1
    actors = _actors(picture, dialog, width, max(0, min(room, max(LEAST_ROWS, room - streams))), glyphs)
    room -= len(actors)
    requests = _streams(picture.streams, width, max(0, room), scroll, glyphs)
    sections = [section for section in (actors, strip, requests) if section]
    spare = height - len(head) - len(foot) - sum(map(len, sections))
    lines = list(head)
    for section in sections:
        if spare > 0:
            lines.append(Text())
            spare -= 1
        lines += section
    lines += [Text()] * (height - len(lines) - len(foot))
    return [*lines, *foot][:height]


def _head(picture: Picture, width: int, glyphs: Glyphs) -> list[Text]:
    name = model_name(clean(picture.model_id)) if picture.model_id else picture.address
    first = f"duoactor top  {name}"
    if picture.model_id:
        first += f" ({picture.dtype} on {picture.device}), method {picture.method}, up {duration(picture.uptime_ms)}"
    lines = [Text(cut(first, width, glyphs.ellipsis), HEADING)]
    if picture.silent_s is not None:
        known = f"no answer for {picture.silent_s:.0f} s; waiting for the verifier to come back"
        why = known if picture.model_id else f"waiting for a verifier: {clean(picture.problem) or 'connecting'}"
        return [*lines, Text(cut(why, width, glyphs.ellipsis), ALARM)]
    facts = [f"{picture.tokens_per_second:.1f} tokens/s"]
    if picture.speedup is not None:
        facts.append(f"{picture.speedup:.2f}{glyphs.times} the target alone")
    facts.append(f"requests {len(picture.streams)}")
    facts.append(f"KV {picture.kv_used:,} of {picture.kv_slots:,} ({picture.kv_used / (picture.kv_slots or 1):.0%})")
    return [*lines, Text(cut("   ".join(facts), width, glyphs.ellipsis))]


def _foot(dialog: Dialog, width: int, glyphs: Glyphs) -> Text:
    if dialog.choosing:
        keys = f"{glyphs.arrows} or a number, Enter; Esc cancels"
        return Text(cut(f"{clean(dialog.question)}  {keys}", width, glyphs.ellipsis), HEADING)
    if dialog.step or dialog.message:
        return Text(cut(clean(dialog.question if dialog.step else dialog.message), width, glyphs.ellipsis), HEADING)
    return Text(cut(f"s swap   d drain   {glyphs.arrows} scroll   q quit", width, glyphs.ellipsis), FAINT)


# --- tables ----------------------------------------------------------------------------------------------------------


def _actors(picture: Picture, dialog: Dialog, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    actors = picture.actors
    if not actors or height < 2:
        return []
    names: list[str] = []
    if dialog.choosing:
        names = dialog.choices([one.actor_id for one in actors if one.role == "drafter"])
        actors = tuple(one for one in actors if one.role == "drafter" and one.actor_id in names)
    chosen = names.index(dialog.chosen) if dialog.chosen in names else 0
    first = max(0, min(chosen - (height - 1) // 2, len(actors) - (height - 1)))
    shown = actors[first : first + height - 1]
    numbers = [
        f"{names.index(one.actor_id) + 1} {clean(one.actor_id)}" if names else clean(one.actor_id) for one in shown
    ]
    columns = (
        Column("actor", numbers, rank=0, widest=20),
        Column("host", [clean(one.host) or "-" for one in shown], rank=4, widest=14),
        Column("state", [one.state or "-" for one in shown], rank=2),
        Column("leases", [str(one.leases) if one.role == "drafter" else "" for one in shown], True, rank=5),
        Column("step", ["" if one.step_us is None else f"{one.step_us / 1000:.2f} ms" for one in shown], True, rank=3),
        Column("busy", ["-" if one.busy is None else f"{one.busy:.0%}" for one in shown], True, rank=1),
        Column("accepted", ["" if one.acceptance is None else f"{one.acceptance:.0%}" for one in shown], True, rank=6),
        Column("model", [model_name(clean(one.model_id)) for one in shown], rank=7, widest=20),
    )
    titles, *rows = table(columns, width, glyphs.ellipsis)
    lines = [Text(titles, HEADING)]
    for one, row in zip(shown, rows, strict=True):
        marked = dialog.choosing and one.actor_id == (names[chosen] if names else "")
        style = CURSOR if marked else FAINT if picture.silent_s is not None else ROLES[one.role]
        lines.append(Text(row, style))
    return lines


def _streams(streams: tuple[Stream, ...], width: int, height: int, scroll: int, glyphs: Glyphs) -> list[Text]:
    if height < 1:
        return []
    if not streams:
        return [Text(cut("no requests", width, glyphs.ellipsis), FAINT)]
    rows = height - 1 if len(streams) <= height - 1 else height - 2  # the last line then says how many more
    if rows < 1:
        return [Text(cut(f"requests {len(streams)}", width, glyphs.ellipsis), FAINT)]
    first = max(0, min(scroll, len(streams) - rows))
    shown = streams[first : first + rows]

    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    columns = (
        Column("request", [clean(one.rid)[:10] for one in shown], rank=0, widest=10),
        Column("method", [clean(one.method) for one in shown], rank=4),
        Column("state", [one.state for one in shown], rank=2),
        Column("tokens", [str(one.tokens) for one in shown], True, rank=3),
        Column("tokens/s", [figure(one.tokens_per_second, ".1f") for one in shown], True, rank=1),
        Column("accepted", [figure(one.acceptance, ".0%") for one in shown], True, rank=5),
        Column("gamma", [figure(one.gamma, ".1f") for one in shown], True, rank=6),
        Column("seqs", [figure(one.sequences, ".1f") for one in shown], True, rank=7),
        Column("drafter", [clean(one.drafter) or "none" for one in shown], rank=8, widest=16),
    )
    titles, *cells = table(columns, width, glyphs.ellipsis)
    lines = [Text(titles, HEADING), *map(Text, cells)]
    if len(streams) > len(shown):
        above, below = first, len(streams) - first - len(shown)
        lines.append(Text(cut(f"{above} more above, {below} below", width, glyphs.ellipsis), FAINT))
    return lines


# --- rounds ----------------------------------------------------------------------------------------------------------


def _strip(strip: Strip, width: int, glyphs: Glyphs) -> list[Text]:
    """A lane for the target and one for each drafter that drafted, on one scale of time."""
    room = width - NAME - 1
    if room < 10:
        return []
    title = f"the last {strip.rounds} rounds, {(strip.end - strip.begin) / 1000:.1f} ms"
    if strip.draft_us:
        title += f"; {strip.overlap_us / strip.draft_us:.0%} of drafting while the target verified"
    verify = lane(strip.verify, strip.begin, strip.end, room, glyphs.levels)
    wait = lane(strip.wait, strip.begin, strip.end, room, glyphs.levels)
    mixed = "".join(glyphs.wait if v == " " and w != " " else v for v, w in zip(verify, wait, strict=True))
    lines = [Text(cut(title, width, glyphs.ellipsis), HEADING), _lane("verify", mixed, VERIFY, glyphs)]
    busiest = sorted(strip.draft, key=lambda name: -sum(end - begin for begin, end in strip.draft[name]))[:MAX_LANES]
    for name, spans in sorted(strip.draft.items()):
        if name not in busiest:
            continue
        drafting = lane(spans, strip.begin, strip.end, room, glyphs.levels)
        lines.append(_lane(clean(name), drafting, DRAFT, glyphs))
    return lines


def _lane(name: str, bars: str, style: str, glyphs: Glyphs) -> Text:
    return Text(f"{cut(name, NAME, glyphs.ellipsis):<{NAME}} ").append(bars, style)
