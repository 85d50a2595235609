// Which moment of which round is shown: the newest one, a chosen one, or all of them in slow motion.

import { PHASES } from "./tree.js";

const GROW_MS = 1500; // a round's measured time is stretched to this ...
const VERDICT_MS = 900; // ... and then the verdict can be read,
const SHOWN = 30; // rounds for which the latest with drafts stays in view
const PRUNE_MS = 500; // and what is left of the tree

export class Player {
  /** `rounds()` gives what there is; `changed(moment, mode)` shows a moment. */
  constructor(rounds, changed) {
    this.rounds = rounds;
    this.changed = changed;
    this.reset();
  }

  reset() {
    this.mode = "live"; // "live", "paused" or "playing"
    this.index = -1;
    this.elapsed = 0; // ms into the round that is played
  }

  /** {round, phase, us}: what is to be seen now; null: nothing yet. */
  get moment() {
    const rounds = this.rounds();
    let index = this.mode === "live" ? rounds.length - 1 : Math.min(this.index, rounds.length - 1);
    if (index < 0) return null;
    // a round without drafts would hide those before it, which one can look at
    for (let at = index; this.mode === "live" && at >= 0 && at > index - SHOWN; at -= 1) if (rounds[at].nodes.length) { index = at; break; }
    const round = rounds[index];
    if (this.mode !== "playing") return { round, index, phase: this.phase ?? "verdict", us: round.end };
    const ms = this.elapsed;
    const phase = ms < GROW_MS ? PHASES[0] : ms < GROW_MS + VERDICT_MS ? PHASES[1] : PHASES[2];
    return { round, index, phase, us: round.begin + (round.end - round.begin) * Math.min(1, ms / GROW_MS) };
  }

  /** How much slower than it was. */
  get slowdown() {
    const moment = this.moment;
    return moment ? (1000 * GROW_MS) / Math.max(1, moment.round.end - moment.round.begin) : 1;
  }

  live() {
    this.mode = "live";
    this.changed();
  }

  pause() {
    this.index = this.moment?.index ?? -1;
    this.mode = "paused";
    this.changed();
  }

  go(index) {
    this.mode = "paused";
    this.index = Math.max(0, Math.min(index, this.rounds().length - 1));
    this.changed();
  }

  step(by) {
    this.go((this.moment?.index ?? 0) + by);
  }

  /** From the round that is shown, or from the first if that is the last. */
  play() {
    const last = this.rounds().length - 1;
    const now = this.moment?.index ?? 0;
    this.index = this.mode === "live" || now >= last ? 0 : now;
    this.elapsed = 0;
    this.mode = "playing";
    this.last = performance.now();
    requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (this.mode !== "playing") return;
    this.elapsed += Math.max(0, now - this.last);
    this.last = now;
    if (this.elapsed >= GROW_MS + VERDICT_MS + PRUNE_MS) {
      if (this.index + 1 >= this.rounds().length) return this.pause();
      this.index += 1;
      this.elapsed = 0;
    }
    this.changed();
    requestAnimationFrame((next) => this.tick(next));
  }
}
