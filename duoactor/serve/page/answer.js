// The answer, a token at a time, and what is known of the token that one points at.

import { $, el, percent, visible } from "./dom.js";
import { ORIGIN_NAMES, ORIGIN_TEXTS, ORIGINS } from "./record.js";

export class AnswerView {
  /** `onPick(token)`: somebody wants to see the round that a token came with. */
  constructor(onPick) {
    this.onPick = onPick;
    this.box = $("answer");
    this.told = $("token");
    this.legend = new Map();
    for (const origin of ORIGINS) {
      const count = el("b", { text: "0" });
      this.legend.set(origin, count);
      const name = el("span", { class: `t ${origin}`, text: ORIGIN_NAMES[origin] });
      $("legend").append(el("li", { title: ORIGIN_TEXTS[origin], "data-origin": origin }, name, count));
    }
    this.box.addEventListener("pointerover", (event) => this.tell(event.target));
    this.box.addEventListener("focusin", (event) => this.tell(event.target));
    this.box.addEventListener("click", (event) => this.pick(event.target));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.clear();
  }

  clear() {
    this.drawn = 0;
    this.answer = null;
    this.round = 0;
    this.box.replaceChildren();
    this.told.replaceChildren();
  }

  /** Draw what came since the last call. */
  update(answer) {
    this.answer = answer;
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    const news = document.createDocumentFragment();
    for (; this.drawn < answer.tokens.length; this.drawn += 1) {
      const { text, origin, round } = answer.tokens[this.drawn];
      const first = this.drawn === 0;
      news.append(el("span", { class: `t ${origin}`, tabindex: first ? 0 : -1, "data-at": this.drawn, "data-round": round, text }));
    }
    this.box.append(news);
    if (follows) this.box.scrollTop = this.box.scrollHeight;
    const counts = answer.counts();
    for (const [origin, count] of this.legend) {
      count.textContent = counts[origin];
      count.parentElement.hidden = !counts[origin];
    }
  }

  /** Mark the tokens of a round. */
  mark(round) {
    if (round === this.round) return;
    for (const old of this.box.querySelectorAll(".marked")) old.classList.remove("marked");
    for (const token of this.box.querySelectorAll(`[data-round="${round}"]`)) token.classList.add("marked");
    this.round = round;
  }

  token(element) {
    const at = element?.dataset?.at;
    return at === undefined ? null : this.answer.tokens[Number(at)];
  }

  tell(element) {
    const token = this.token(element);
    if (!token) return;
    const chance = token.chance === null ? "" : `, given a chance of ${percent(token.chance)}`;
    const round = token.round ? `round ${token.round}` : "the prompt's own forward";
    this.told.replaceChildren(
      el("span", { class: `t ${token.origin}`, text: visible(token.text, 30) }),
      ` ${ORIGIN_NAMES[token.origin]}: ${ORIGIN_TEXTS[token.origin]}${chance} (${round}).`,
    );
  }

  pick(element) {
    const token = this.token(element);
    if (!token) return;
    this.focus(element);
    this.onPick(token);
  }

  focus(element) {
    this.box.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    element.setAttribute("tabindex", "0");
    element.focus();
  }

  key(event) {
    const now = event.target.closest("[data-at]");
    const to = {
      ArrowRight: () => now?.nextElementSibling,
      ArrowLeft: () => now?.previousElementSibling,
      Home: () => this.box.firstElementChild,
      End: () => this.box.lastElementChild,
    }[event.key]?.();
    if (to) {
      event.preventDefault();
      this.focus(to);
    } else if (event.key === "Enter" && now) this.pick(now);
  }
}
