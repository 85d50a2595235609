// Two lanes on one clock: when the target verified, when drafts were made or found, when the target waited for them.

import { milliseconds, svg } from "./dom.js";

const LANES = { verify: 22, draft: 66 }; // y of each lane's bars
const BAR = 34;
const COUNT = 12; // rounds shown
const HEIGHT = 132;
const LEFT = 92; // room for the lanes' names

export class Timeline {
  constructor(element, onPick) {
    this.element = element;
    this.rounds = [];
    element.addEventListener("click", (event) => {
      const found = this.roundAt(this.timeAt(event.clientX));
      if (found) onPick(found);
    });
  }

  /** Rounds around `index`, and a cursor at `us`; null: none. */
  show(rounds, index, us) {
    const width = this.element.getBoundingClientRect().width;
    this.element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const last = Math.min(rounds.length - 1, Math.max(index + (us === null ? 0 : COUNT / 2), COUNT - 1));
    const first = Math.max(0, last - COUNT + 1);
    const seen = rounds.slice(first, last + 1);
    const from = seen[0].begin;
    const to = seen.at(-1).end;
    this.rounds = seen;
    this.range = [from, to, width];
    const x = (t) => LEFT + ((width - LEFT - 8) * (t - from)) / Math.max(1, to - from);
    this.x = x;
    const here = rounds[index];
    const paths = { verify: "", draft: "", wait: "", copied: "" };
    const labels = [];
    const bar = (kind, lane, start, end) => {
      const a = x(Math.max(from, start));
      const b = x(Math.min(to, end));
      if (b > LEFT && a < width && end > from && start < to) {
        paths[kind] += `M${a.toFixed(2)} ${LANES[lane]}H${Math.max(b - 0.5, a + 0.6).toFixed(2)}V${LANES[lane] + BAR}H${a.toFixed(2)}Z`;
      }
    };
    seen.forEach((round, i) => {
      const before = (seen[i - 1] ?? rounds[first - 1])?.drafter;
      if (before && round.drafter && before !== round.drafter) {
        const at = x(round.begin).toFixed(1);
        labels.push(svg("path", { class: "swap", d: `M${at} 12V${HEIGHT - 26}` }));
        labels.push(svg("text", { class: "axis", x: Number(at) + 4, y: 16, text: `now ${round.drafter}` }));
      }
      bar("verify", "verify", round.start, round.end);
      if (round.wait) bar("wait", "verify", round.wait[0], round.wait[0] + round.wait[1]);
      const wide = x(round.end) - x(round.start);
      if (wide > 26) labels.push(svg("text", { class: "bar", x: x(round.start) + wide / 2, y: LANES.verify + 22, text: `+${round.count}` }));
      const copied = round.nodes.filter((node) => node.verified && ["retrieved", "remembered"].includes(node.origin)).length;
      if (copied) {
        // found within microseconds: a bar of no length, where the target begins
        bar("copied", "draft", round.start, round.start + (4 * (to - from)) / (width - LEFT - 8));
        if (wide > 90) labels.push(svg("text", { class: "axis", x: x(round.start) + 8, y: LANES.draft + 21, text: `${copied} copied` }));
      }
    });
    for (const round of rounds.slice(first, last + 4)) for (const [start, length] of round.drafts) bar("draft", "draft", start, start + length);
    const mark = svg("rect", { class: "here", x: x(here.begin), y: 8, width: Math.max(2, x(here.end) - x(here.begin)), height: HEIGHT - 34, rx: 4 });
    const cursor = us === null ? null : svg("path", { class: "cursor", d: `M${x(us).toFixed(1)} 4V${HEIGHT - 22}` });
    this.element.replaceChildren(
      mark,
      ...this.names(),
      ...Object.entries(paths).map(([kind, d]) => svg("path", { class: kind, d })),
      ...labels,
      ...this.scale(to - from, width),
      ...(cursor ? [cursor] : []),
    );
  }

  names() {
    return [
      svg("text", { class: "lane", x: 0, y: LANES.verify + 21, text: "target" }),
      svg("text", { class: "lane", x: 0, y: LANES.draft + 21, text: "drafts" }),
    ];
  }

  /** A bar of a round length, such as 20 ms. */
  scale(span, width) {
    const most = span / 5;
    const power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].map((n) => n * power).find((n) => n <= most) ?? power;
    const end = LEFT + ((width - LEFT - 8) * length) / span;
    const y = HEIGHT - 8;
    return [
      svg("path", { class: "scale", d: `M${LEFT} ${y - 4}V${y}H${end}V${y - 4}` }),
      svg("text", { class: "axis", x: end + 6, y: y + 1, text: length >= 1000 ? `${length / 1000} ms` : milliseconds(length) }),
    ];
  }

  timeAt(clientX) {
    if (!this.range) return 0;
    const [from, to, width] = this.range;
    const place = (clientX - this.element.getBoundingClientRect().left - LEFT) / (width - LEFT - 8);
    return from + place * (to - from);
  }

  roundAt(us) {
    return this.rounds.find((round) => us <= round.end);
  }
}
