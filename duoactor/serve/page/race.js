// The same question again, six times in turns: by the target alone and with drafts, each without what others left in caches.

import { $, el, rate } from "./dom.js";

const TURNS = 3;
const WAYS = { alone: "the target alone", drafted: "with drafts" };

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const times = (ratio) => `${ratio.toFixed(2)}×`;

export class Race {
  /** Nothing has been raced of this answer. */
  clear() {
    $("laps").replaceChildren();
    $("verdict").textContent = "";
    $("racing").dataset.state = "none";
  }

  /** `run(way, onShare)` asks once, tells the share that is there, and gives {text, perSecond, drafts, accepted}; `why` says what drafts lack. */
  async run(text, run, why) {
    this.clear();
    $("racing").dataset.state = "running";
    const laps = [];
    try {
      for (let turn = 1; turn <= TURNS; turn += 1) {
        const lap = { alone: null, drafted: null };
        for (const way of ["alone", "drafted"]) {
          $("lap-name").textContent = `turn ${turn} of ${TURNS}, ${WAYS[way]}`;
          $("lap").value = 0;
          lap[way] = await run(way, (share) => ($("lap").value = share));
        }
        laps.push(lap);
        const rates = [lap.alone, lap.drafted].map(({ perSecond }) => el("td", { text: rate(perSecond) }));
        $("laps").append(el("tr", {}, el("th", { scope: "row", text: String(turn) }), ...rates, el("td", { text: times(ratio(lap)) })));
      }
      $("racing").dataset.state = "over";
      $("verdict").textContent = verdict(text, laps, why);
    } catch (error) {
      this.clear();
      throw error;
    }
  }
}

const ratio = ({ alone, drafted }) => drafted.perSecond / alone.perSecond;

function verdict(text, laps, why) {
  const ratios = laps.map(ratio);
  const [middle, least, most] = [median(ratios), Math.min(...ratios), Math.max(...ratios)];
  const all = laps.flatMap(({ alone, drafted }) => [alone.text, drafted.text]);
  const begins = text.startsWith(all[0]) || all[0].startsWith(text); // a stopped answer may hold its last letters back
  const same = begins && all.every((one) => one === all[0]) ? "All wrote the text above." : "They wrote another text: please report it.";
  const sum = (of) => laps.reduce((total, { drafted }) => total + of(drafted), 0);
  const [drafts, accepted] = [sum((lap) => lap.drafts), sum((lap) => lap.accepted)];
  const range = `${times(middle)} as fast (median of ${laps.length}; ${times(least)} to ${times(most)})`;
  const begun = least > 1 ? `With drafts ${range}.` : most < 1 ? `Drafts lost: ${range}.` : `No sure winner: with drafts ${range}.`;
  return [begun, same, middle < 1 ? why(drafts, accepted) : ""].filter(Boolean).join(" ");
}
