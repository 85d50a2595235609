// What came of one answer: its tokens, its rounds, and the figures made of them. All of it is what the verifier measured.

import { rate } from "./dom.js";

export const ORIGINS = ["draft", "sibling", "retrieved", "remembered", "forced", "target"];
export const ORIGIN_NAMES = {
  draft: "drafted",
  sibling: "kept sibling",
  retrieved: "copied",
  remembered: "repeated from memory",
  forced: "forced by grammar",
  target: "target's own",
};
export const ORIGIN_TEXTS = {
  draft: "the draft model's likeliest token, confirmed by the target",
  sibling: "another candidate of the draft model, kept in case the likeliest is rejected, which it was",
  retrieved: "found in this conversation (or a datastore) by the verifier, and confirmed by the target",
  remembered: "found in an earlier answer that the server remembers, and confirmed by the target",
  forced: "the only token that the grammar allows there",
  target: "computed by the target: the end of every round",
};

export class Answer {
  /** `asked`: [path, body] of the request. */
  constructor(asked) {
    this.asked = asked;
    this.content = "";
    this.thoughts = "";
    this.plain = null; // {tokens, per_second} of plain decoding, as known when the answer ended; 0 tokens: estimated
    this.tokens = []; // {text, origin, chance, round}; round 0 is the prompt's own forward
    this.rounds = [];
    this.finish = null;
    this.metrics = null;
  }

  /** One event of the stream. */
  add(event) {
    const { trace } = event;
    if (trace) {
      const round = trace.round ? makeRound(trace, this.rounds, this.tokens.length) : null;
      if (round) this.rounds.push(round);
      trace.pieces.forEach((text, i) =>
        this.tokens.push({ text, origin: trace.origins[i], chance: trace.chance[i], round: round?.number ?? 0 }),
      );
    }
    const choice = event.choices?.[0];
    this.content += choice?.delta?.content ?? choice?.text ?? "";
    this.thoughts += choice?.delta?.reasoning_content ?? "";
    this.finish = choice?.finish_reason ?? this.finish;
    this.metrics = event.metrics ?? this.metrics;
  }

  /** The index of the round with the most accepted drafts, the latest of them; without any the last. */
  best() {
    const most = Math.max(0, ...this.rounds.map((round) => round.accepted));
    return most ? this.rounds.findLastIndex((round) => round.accepted === most) : this.rounds.length - 1;
  }

  /** How many tokens are of each origin. */
  counts() {
    const counts = Object.fromEntries(ORIGINS.map((origin) => [origin, 0]));
    for (const token of this.tokens) counts[token.origin] += 1;
    return counts;
  }

  /** One line below the answer. */
  note() {
    const { tokens, perSecond, overPlain, shared } = this.figures();
    const { remembered } = this.counts();
    const parts = [`${tokens} tokens`];
    if (perSecond) parts.push(`${rate(perSecond)} tokens/s`);
    if (overPlain) parts.push(`${overPlain.toFixed(2)}× plain decoding (${rate(this.plain.per_second)} tokens/s over ${this.plain.tokens} tokens)`);
    if (shared) parts.push(SHARED);
    if (remembered) parts.push(`${remembered} of them repeated from memory`);
    if (this.finish === "length") parts.push("ended at the token limit");
    return parts.join(" · ");
  }

  figures() {
    const { rounds } = this;
    const sum = (of) => rounds.reduce((total, round) => total + of(round), 0);
    const tokens = sum((r) => r.count);
    const wall = sum((r) => r.end - r.begin);
    const window = sum((r) => r.window);
    const shared = rounds.some((r) => r.shared);
    const perSecond = wall ? (1e6 * tokens) / wall : null; // after the first token, as plain decoding is counted, too
    return {
      tokens: this.tokens.length,
      rounds: rounds.length,
      perSecond,
      shared,
      overPlain: perSecond && this.plain?.tokens && !shared ? perSecond / this.plain.per_second : null,
      perRound: rounds.length ? tokens / rounds.length : null,
      acceptance: window ? sum((r) => r.accepted) / window : null,
      firstMs: this.metrics?.time_to_first_token_ms ?? null,
      overlap: overlap(rounds),
    };
  }
}

/** Why an answer is not compared: the plain rate is that of one request alone. */
export const SHARED = "other requests ran meanwhile";

function makeRound({ round: stats, tree, token_ids, pieces }, before, first) {
  const accepted = new Set(tree.path);
  const nodes = tree.token_ids.map((id, i) => ({
    id,
    text: tree.text[i],
    parent: tree.parents[i],
    chance: tree.chance[i],
    origin: tree.origins[i],
    arrived: tree.arrived_us[i],
    verified: i < stats.window,
    accepted: accepted.has(i),
  }));
  for (const node of nodes) node.pathChance = node.chance * (nodes[node.parent]?.pathChance ?? 1);
  const end = stats.started_us + stats.forward_us;
  const own = pieces.length > tree.path.length; // a stop string or token may end an answer before it
  return {
    number: before.length + 1,
    first,
    count: token_ids.length,
    begin: before.at(-1)?.end ?? (stats.wait_us ? stats.waited_from_us : stats.started_us),
    start: stats.started_us,
    end,
    wait: stats.wait_us && !stats.own_drafts ? [stats.waited_from_us, stats.wait_us] : null,
    drafts: stats.draft_forwards,
    window: stats.window,
    accepted: stats.accepted,
    gamma: stats.gamma,
    sequences: stats.sequences,
    drafter: stats.drafter,
    own_drafts: stats.own_drafts,
    resting: stats.resting,
    shared: stats.streams > 1 || stats.rows > stats.window + 1,
    nodes,
    tip: tree.path.at(-1) ?? -1,
    own: own ? { id: token_ids.at(-1), text: pieces.at(-1) } : null,
  };
}

/** The share of the draft model's time in which the target was at work as well; null: nothing was drafted. */
export function overlap(rounds) {
  let both = 0;
  let drafting = 0;
  let first = 0; // rounds before it ended before anything that is still to come began
  for (const round of rounds) {
    for (const [start, length] of round.drafts) {
      drafting += length;
      while (first < rounds.length && rounds[first].end < start) first += 1;
      for (let i = first; i < rounds.length && rounds[i].start < start + length; i += 1) {
        both += Math.max(0, Math.min(rounds[i].end, start + length) - Math.max(rounds[i].start, start));
      }
    }
  }
  return drafting ? both / drafting : null;
}
