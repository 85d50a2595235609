// Small charts over the rounds of an answer: one point a round, the shown one marked.

import { percent, svg } from "./dom.js";

const SHOWN = 160; // rounds
const HEIGHT = 64;
const SMOOTH = 16; // rounds over which acceptance is taken together: of one round alone it is mostly 0 or 1

const CHARTS = [
  { id: "chart-tokens", of: (rounds, i) => rounds[i].count, text: (v) => `${v}`, bars: true },
  { id: "chart-acceptance", of: acceptance, text: percent, top: 1 },
  { id: "chart-gamma", of: (rounds, i) => rounds[i].gamma, text: (v) => `${v}`, steps: true },
  { id: "chart-sequences", of: (rounds, i) => rounds[i].sequences || leaves(rounds[i]), text: (v) => `${v}`, steps: true },
];

function leaves({ nodes }) {
  const parents = new Set(nodes.map((node) => node.parent));
  return nodes.filter((_, i) => !parents.has(i)).length || null;
}

function acceptance(rounds, i) {
  let accepted = 0;
  let window = 0;
  for (const round of rounds.slice(Math.max(0, i - SMOOTH + 1), i + 1)) {
    accepted += round.accepted;
    window += round.window;
  }
  return window ? accepted / window : null;
}

/** Draws all of them into the figures of that id. */
export function drawCharts(rounds, index) {
  for (const chart of CHARTS) draw(document.getElementById(chart.id), chart, rounds, index);
}

function draw(figure, { of, text, bars, steps, top }, rounds, index) {
  const picture = figure.querySelector("svg");
  const first = Math.max(0, Math.min(index - SHOWN / 2, rounds.length - SHOWN));
  const values = rounds.slice(first, first + SHOWN).map((_, i) => of(rounds, first + i));
  const known = values.filter((value) => value !== null);
  const now = index >= 0 ? of(rounds, index) : null;
  figure.querySelector(".value").textContent = now === null ? "–" : text(now);
  const width = picture.getBoundingClientRect().width;
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  if (!known.length) return void picture.replaceChildren(empty(width, rounds.length ? "does not apply to these rounds" : ""));
  const most = top ?? Math.max(...known, 2);
  const step = (width - 4) / Math.max(values.length, 24);
  const y = (value) => HEIGHT - 4 - ((HEIGHT - 14) * value) / most;
  let line = "";
  let pen = false;
  values.forEach((value, i) => {
    const x = 2 + i * step;
    if (value === null) return void (pen = false);
    if (bars) line += `M${x.toFixed(1)} ${HEIGHT - 4}V${y(value).toFixed(1)}H${(x + Math.max(0.8, step * 0.8)).toFixed(1)}V${HEIGHT - 4}Z`;
    else if (steps) line += `${pen ? "L" : "M"}${x.toFixed(1)} ${y(value).toFixed(1)}H${(x + step).toFixed(1)}`;
    else line += `${pen ? "L" : "M"}${(x + step / 2).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  picture.replaceChildren(
    svg("path", { class: "base", d: `M2 ${HEIGHT - 3.5}H${width - 2}` }),
    svg("path", { class: bars ? "bars" : "line", d: line }),
    svg("path", { class: "cursor", d: `M${(2 + (index - first + 0.5) * step).toFixed(1)} 4V${HEIGHT - 4}` }),
    svg("text", { class: "axis", x: width - 2, y: 9, "text-anchor": "end", text: `max ${text(most)}` }),
  );
}

const empty = (width, text) => svg("text", { class: "axis", x: width / 2, y: HEIGHT / 2 + 4, "text-anchor": "middle", text });
