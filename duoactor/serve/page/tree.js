// The token tree of one round: laid out once, then shown as it was at any moment of the round.

import { percent, svg, visible } from "./dom.js";

const MAX_DRAWN = 72; // nodes: more cannot be told apart
const ROW = 30;
const HEIGHT = 22;
const GAP = 20; // between columns, where edges run
const LETTER = 7.3; // px of the monospaced face at its size in style.css
const MARGIN = 10;
const SMALLEST = 0.7; // below that nothing can be read: the picture is scrolled instead

/** What a moment of a round shows; see player.js. */
export const PHASES = ["grow", "verdict", "prune"];

/**
 * Columns by depth. The accepted path and then the likeliest child go straight on; what branches off takes the first row
 * below that has room, deepest branches first, so that no two edges cross.
 */
function layout(round) {
  const drawn = chosen(round);
  const below = new Map([[-1, []]]);
  for (const i of drawn) below.set(i, []);
  for (const i of drawn) below.get(round.nodes[i].parent).push(i);
  for (const children of below.values()) children.sort((a, b) => rank(round, b) - rank(round, a));
  const tips = below.get(round.tip);
  if (round.own && !tips.some((i) => round.nodes[i].id === round.own.id)) tips.unshift("own");
  const placed = new Map();
  const taken = []; // of each row the columns in use
  const widths = [];
  const straight = (i) => {
    const path = [i];
    while (below.get(path.at(-1))?.length) path.push(below.get(path.at(-1))[0]);
    return path;
  };
  const place = (i, depth, above) => {
    const path = straight(i);
    const free = (row) => path.every((_, n) => !taken[row]?.has(depth + n));
    let row = above;
    while (!free(row)) row += 1;
    path.forEach((node, n) => {
      placed.set(node, { depth: depth + n, row });
      (taken[row] ??= new Set()).add(depth + n);
      widths[depth + n] = Math.max(widths[depth + n] ?? 0, wide(nodeOf(round, node)));
    });
    path.forEach((_, back) => {
      const at = path.length - 1 - back;
      for (const child of (below.get(path[at]) ?? []).slice(1)) place(child, depth + at + 1, row + 1);
    });
  };
  place(-1, 0, 0);
  const x = widths.reduce((starts, width) => [...starts, starts.at(-1) + width + GAP], [MARGIN]);
  return { placed, x, width: x.at(-1) - GAP + MARGIN, height: taken.length * ROW - (ROW - HEIGHT) + 2 * MARGIN, drawn };
}

const nodeOf = (round, i) => (i === "own" ? round.own : (round.nodes[i] ?? null));
const label = (node) => (node ? visible(node.text, 12) : "⋯");
const wide = (node) => label(node).length * LETTER + 16;

function chosen(round) {
  const order = round.nodes.map((_, i) => i).slice(0, Math.max(round.window, MAX_DRAWN));
  return order.filter((i) => i < round.window || i < MAX_DRAWN);
}

function rank(round, i) {
  const node = round.nodes[i];
  return (node.accepted ? 4 : 0) + (round.own && node.id === round.own.id && node.parent === round.tip ? 2 : 0) + node.chance;
}

/** Whether node i is still there when the round is over: below the target's own token, which is the new root. */
function survivors(round) {
  const root = round.own
    ? round.nodes.findIndex((node) => node.parent === round.tip && node.id === round.own.id)
    : -2;
  const alive = new Set();
  round.nodes.forEach((node, i) => (i === root || alive.has(node.parent)) && alive.add(i));
  if (root < 0) alive.clear();
  return { alive, root };
}

export class TreeView {
  constructor(element, onPick) {
    this.element = element;
    this.onPick = onPick;
    this.round = null;
    this.parts = [];
  }

  /** `round` at a moment: `phase` and, while the tree grows, the time `us` since the verifier's start. */
  show(round, phase, us) {
    if (round !== this.round) this.draw(round);
    const forward = us >= round.start;
    for (const { node, group, edge, alive, isRoot } of this.parts) {
      const there = node.own ? phase !== "grow" : node.arrived <= us || phase !== "grow";
      const decided = phase !== "grow";
      // a token that was drafted but not verified is the target's own all the same; only what hangs below it was gained
      const classes = ["node", node.own || (decided && isRoot && !node.verified) ? "target" : node.origin];
      if (!there) classes.push("absent");
      if (node.verified && (forward || phase !== "grow")) classes.push("verified");
      if (phase !== "grow") {
        if (node.accepted || node.own || isRoot) classes.push("accepted");
        else if (node.verified) classes.push("rejected");
      }
      if (phase === "prune" && !alive && !node.own) classes.push("pruned");
      const name = classes.join(" ");
      if (group.getAttribute("class") !== name) {
        group.setAttribute("class", name);
        edge.setAttribute("class", name.replace("node", "edge"));
      }
    }
  }

  draw(round) {
    this.round = round;
    this.parts = [];
    const { placed, x, width, height, drawn } = layout(round);
    const { alive, root } = survivors(round);
    const at = (i) => {
      const { depth, row } = placed.get(i);
      return { left: x[depth], right: x[depth] + wide(nodeOf(round, i)), y: MARGIN + row * ROW + HEIGHT / 2 };
    };
    const edges = svg("g");
    const nodes = svg("g");
    const box = (i, title) => {
      const { left, right, y } = at(i);
      return svg(
        "g",
        { class: "node", transform: `translate(${left} ${y - HEIGHT / 2})` },
        svg("title", { text: title }),
        svg("rect", { width: right - left, height: HEIGHT, rx: 6 }),
        svg("text", { x: (right - left) / 2, y: 15.5, text: label(nodeOf(round, i)) }),
      );
    };
    const link = (from, to) => {
      const a = at(from);
      const b = at(to);
      const turn = b.left - GAP / 2; // a branch leaves its parent's row in the gap before its own column
      const down = a.y === b.y ? "" : `H${turn - 6}C${turn + 2} ${a.y} ${turn - 2} ${b.y} ${turn + 6} ${b.y}`;
      return svg("path", { d: `M${a.right} ${a.y}${down}H${b.left}` });
    };
    nodes.append(box(-1, "the text so far"));
    nodes.firstChild.setAttribute("class", "node root");
    for (const i of drawn) {
      const node = round.nodes[i];
      const where = node.verified ? "verified in this round" : "not verified in this round";
      const group = box(i, `${visible(node.text, 40)}: ${node.origin}, chance ${percent(node.chance)}, ${where}`);
      if (node.accepted) group.addEventListener("click", () => this.onPick(round, i));
      const edge = link(node.parent, i);
      edge.style.strokeWidth = 0.8 + 3.2 * node.pathChance;
      edges.append(edge);
      nodes.append(group);
      this.parts.push({ node, group, edge, alive: alive.has(i), isRoot: i === root });
    }
    if (placed.has("own")) {
      const group = box("own", `${visible(round.own.text, 40)}: the target's own token, which nobody had drafted`);
      const edge = link(round.tip, "own");
      edges.append(edge);
      nodes.append(group);
      this.parts.push({ node: { own: true }, group, edge, alive: true, isRoot: true });
    }
    const view = this.element;
    view.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const room = view.parentElement.clientWidth;
    const scale = Math.max(SMALLEST, Math.min(1, room / width));
    view.style.width = `${width * scale}px`;
    view.style.height = `${height * scale}px`;
    view.replaceChildren(edges, nodes);
  }

  clear() {
    this.round = null;
    this.element.replaceChildren();
  }
}

/** One sentence for who cannot see the picture. */
export function describe(round) {
  const taken = round.nodes.filter((node) => node.accepted);
  const quoted = (nodes) => `“${nodes.map((node) => node.text).join("").replace(/\n/g, "⏎")}”`;
  const own = !round.own ? "" : round.own.text ? ` The target's own token is ${quoted([round.own])}.` : " The target's own token has no text.";
  if (!round.nodes.length) return `Round ${round.number}: nothing was drafted.${own}`;
  const more = round.nodes.length - chosen(round).length;
  return (
    `Round ${round.number}: ${round.window} of ${round.nodes.length} drafted tokens were verified, ` +
    `${taken.length ? `${taken.length} accepted: ${quoted(taken)}.` : "none accepted."}${own}` +
    (more > 0 ? ` ${more} unlikely ones are not drawn.` : "")
  );
}
