// The conversation: its turns as they are shown, kept for this tab until it is closed.

import { $, el } from "./dom.js";
import { copier, Markdown } from "./markdown.js";

const KEPT = "duoactor-chat";

export class Chat {
  /** `onLens(turn)`: somebody wants to see how that answer came about. */
  constructor(onLens) {
    this.box = $("turns");
    this.onLens = onLens;
    this.turns = [];
    for (const turn of kept()) this.add(turn);
    this.box.scrollTop = this.box.scrollHeight;
    addEventListener("pagehide", () => this.keep());
  }

  /** What has been said, as the API takes it. */
  get messages() {
    return this.turns.filter(({ content }) => content).map(({ role, content }) => ({ role, content }));
  }

  /** A turn; `raw`: it is no Markdown. */
  add({ role, content = "", thoughts = "", note = "", raw = role === "user" }) {
    const text = el("div", { class: raw ? "raw" : "markdown" });
    const thought = el("div", { class: "raw" });
    const turn = { role, content, thoughts, note, raw, answer: null };
    turn.shown = {
      markdown: raw ? null : new Markdown(text),
      text,
      thought,
      thoughts: el("details", { class: "thoughts" }, el("summary", { text: "Thoughts" }), thought),
      note: el("p", { class: "note" }),
      lens: el("button", { type: "button", class: "quiet", text: "Lens", "aria-pressed": "false", on: { click: () => this.onLens(turn) } }),
    };
    const { thoughts: details, note: line, lens } = turn.shown;
    const tools = role === "user" ? [] : [el("div", { class: "tools" }, copier(() => turn.content, text), lens, line)];
    turn.element = el("li", { class: role }, el("h2", { class: "hidden", text: role === "user" ? "You" : "Answer" }), details, text, ...tools);
    this.turns.push(turn);
    this.box.append(turn.element);
    this.show(turn);
    this.box.scrollTop = this.box.scrollHeight;
    return turn;
  }

  /** Draw what has changed of a turn. */
  show({ content, thoughts, note, answer, shown }) {
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 60;
    if (shown.markdown) shown.markdown.update(content);
    else shown.text.textContent = content;
    shown.thought.textContent = thoughts;
    shown.thoughts.hidden = !thoughts;
    shown.note.textContent = note;
    shown.lens.hidden = !answer?.rounds.length;
    if (follows) this.box.scrollTop = this.box.scrollHeight;
    document.body.dataset.empty = this.turns.length ? "no" : "yes";
  }

  /** Mark the answer that the lens shows. */
  mark(turn) {
    for (const one of this.turns) one.shown.lens.setAttribute("aria-pressed", String(one === turn));
  }

  /** Take back the last turns, of which nothing came. */
  drop(count = this.turns.length) {
    for (const turn of this.turns.splice(this.turns.length - count)) turn.element.remove();
    document.body.dataset.empty = this.turns.length ? "no" : "yes";
    this.keep();
  }

  /** Keep it for a reload. Returns whether the tab's store has room for it. */
  keep() {
    const plain = this.turns.map(({ role, content, thoughts, note, raw }) => ({ role, content, thoughts, note, raw }));
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(plain));
      return true;
    } catch {
      sessionStorage.removeItem(KEPT);
      return false;
    }
  }
}

function kept() {
  try {
    const turns = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
    return turns.filter(({ role, content }) => ["user", "assistant"].includes(role) && typeof content === "string");
  } catch {
    return []; // another page of this address may have left anything there
  }
}
