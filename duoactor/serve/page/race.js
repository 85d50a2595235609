// The same prompt twice, one after the other: by the target alone, then with drafts beside what the target alone had then.

import { $ } from "./dom.js";

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

class Lap {
  constructor() {
    this.begun = performance.now();
    this.times = []; // ms from the question to each token
    this.text = "";
  }

  take(answer) {
    const now = performance.now() - this.begun;
    while (this.times.length < answer.tokens.length) this.times.push(now);
    this.text = answer.tokens.map((token) => token.text).join("");
  }

  get ms() {
    return this.times.at(-1) ?? 0;
  }

  /** Tokens that there were after so many ms. */
  at(ms) {
    const later = this.times.findIndex((time) => time > ms);
    return later < 0 ? this.times.length : later;
  }
}

export class Race {
  /** The next lap begins: the first is the target's alone. */
  begin(most) {
    $("racing").hidden = false;
    if (!this.alone || this.drafted) {
      [this.alone, this.drafted] = [new Lap(), null];
      $("lead").textContent = "The target alone writes first …";
    } else {
      this.drafted = new Lap();
      most = this.alone.times.length;
    }
    for (const id of ["lap-alone", "lap-drafted"]) [$(id).max, $(id).value] = [most, 0];
  }

  take(answer) {
    const lap = this.drafted ?? this.alone;
    lap.take(answer);
    if (!this.drafted) return void ($("lap-alone").value = lap.times.length);
    const other = this.alone.at(lap.ms);
    $("lap-alone").value = other;
    $("lap-drafted").value = lap.times.length;
    const ahead = lap.times.length - other;
    $("lead").textContent = `${Math.abs(ahead)} tokens ${ahead < 0 ? "behind" : "ahead"} after ${seconds(lap.ms)}`;
  }

  /** What came of it. */
  end() {
    const { alone, drafted } = this;
    const same = alone.text === drafted.text ? "The same text" : "Another text: please report it";
    const ratio = (alone.ms / drafted.ms).toFixed(2);
    $("lead").textContent += `: ${ratio}× as fast, ${seconds(drafted.ms)} against ${seconds(alone.ms)}. ${same}.`;
    this.alone = null;
  }
}
