// The verifier and its drafters as they are now, and the two orders that may be given while text is streaming.

import { json } from "./api.js";
import { $, el, milliseconds, percent } from "./dom.js";

const EVERY_MS = 1000;

/** The last part of a path, or of a hub's id. */
const short = (model) => model.split("/").filter(Boolean).at(-1) ?? model;

export class Drafters {
  /** `onState(error)`: the state is known anew, or, with an error, not known; `onTrouble(error)`: an order failed. */
  constructor(onState, onTrouble, onDone) {
    Object.assign(this, { onState, onTrouble, onDone });
    this.shown = "";
    this.state = null; // null: not known now
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
    this.ask();
  }

  async ask() {
    let wrong = null;
    try {
      this.state = await json("live/state");
    } catch (error) {
      [this.state, wrong] = [null, error];
    }
    this.draw(wrong);
    this.onState(wrong);
  }

  /** Why nothing may be drafted here, and what would change that. */
  get lack() {
    if (this.state?.drafters.length || this.state?.inline) return "";
    return "No draft model is loaded, so only repeated text is drafted. duoactor up MODEL --draft DRAFT adds a draft model, and duoactor distill makes one.";
  }

  draw(wrong) {
    const { model, device, dtype, running, waiting, method, inline } = this.state ?? {};
    const drafters = (this.state?.drafters ?? []).toSorted((a, b) => a.actor_id.localeCompare(b.actor_id));
    $("server").dataset.state = this.state ? "up" : "down";
    $("server").textContent = this.state
      ? `${short(model)} · ${dtype} on ${device} · ${running} running${waiting ? `, ${waiting} waiting` : ""}`
      : { 0: "server gone", 401: "locked" }[wrong.status] ?? "model not ready";
    const about = this.state?.about ? `This model is ${this.state.about}`.split("`") : [];
    $("about").replaceChildren(...about.map((text, at) => (at % 2 ? el("code", { text }) : text))); // what `…` holds is typed
    if (this.state) $("default-method").textContent = `${method} (default)`;
    $("actors").hidden = !this.state;
    const told = JSON.stringify([drafters, inline]);
    if (told === this.shown || $("drafters").contains(document.activeElement?.closest("select"))) return;
    this.shown = told;
    const focused = document.activeElement?.dataset?.order;
    $("drafters").replaceChildren(...drafters.map((one) => this.row(one, drafters)));
    const own = inline ? `The verifier drafts, too, with ${short(inline)}. ` : "";
    const one = "A second drafter could take over in mid-stream: duoactor up --drafters 2.";
    $("no-drafters").textContent = own + (drafters.length > 1 ? "" : drafters.length ? one : own ? "" : this.lack);
    if (focused) [...$("drafters").querySelectorAll("button")].find((button) => button.dataset.order === focused)?.focus();
  }

  row(one, all) {
    const others = all.filter((other) => other.actor_id !== one.actor_id);
    const target = others.length > 1 ? el("select", { "aria-label": `take over from ${one.actor_id}` }, ...others.map((other) => el("option", { text: other.actor_id }))) : null;
    const swap = el("button", {
      type: "button",
      "data-order": `swap ${one.actor_id}`,
      text: others.length === 1 ? `Swap to ${others[0].actor_id}` : "Swap to",
      title: `move every stream of ${one.actor_id} to another drafter; the text stays the same`,
      on: { click: () => this.order("live/swap", { old: one.actor_id, new: target?.value ?? others[0].actor_id }) },
    });
    const drain = el("button", {
      type: "button",
      class: "quiet",
      "data-order": `drain ${one.actor_id}`,
      text: "Drain",
      title: `take ${one.actor_id} out of service; its streams go on with others`,
      on: { click: (event) => this.confirm(event.target, () => this.order("live/drain", { actor_id: one.actor_id })) },
    });
    const taken = one.drafted ? `, ${percent(one.accepted / one.drafted)} of ${one.drafted} drafts accepted` : "";
    return el(
      "li",
      { "data-drafter": one.actor_id },
      el("p", {}, el("b", { text: one.actor_id }), " ", el("span", { class: `state ${one.state}`, text: one.state })),
      el("p", { class: "soft", text: `${short(one.model_id)} on ${one.host}: ${one.leases} stream${one.leases === 1 ? "" : "s"}, ${milliseconds(one.step_us)} a step${taken}` }),
      el("p", { class: "orders" }, ...(others.length ? [swap] : []), target, drain),
    );
  }

  /** A second press within four seconds does it. */
  confirm(button, order) {
    if (button.dataset.sure) return order();
    button.dataset.sure = "yes";
    button.textContent = "Really drain?";
    setTimeout(() => {
      delete button.dataset.sure;
      button.textContent = "Drain";
    }, 4000);
  }

  async order(path, body) {
    try {
      this.onDone((await json(path, body)).detail);
      await this.ask();
    } catch (error) {
      this.onTrouble(error);
    }
  }
}
