// The verifier and its drafters as they are now, and the two orders that may be given while text is streaming.

import { json } from "./api.js";
import { $, el, milliseconds, percent } from "./dom.js";

const EVERY_MS = 1000;

/** The last part of a path, or of a hub's id. */
const short = (model) => model.split("/").filter(Boolean).at(-1) ?? model;

export class Drafters {
  /** `onTrouble(error)`: what went wrong with an order or with asking; null: all is well again. */
  constructor(onTrouble, onDone) {
    this.onTrouble = onTrouble;
    this.onDone = onDone;
    this.shown = "";
    this.state = null;
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
    this.ask();
  }

  async ask() {
    try {
      this.state = await json("live/state");
      this.draw();
      this.onTrouble(null);
    } catch (error) {
      $("server").dataset.state = "down";
      this.onTrouble(error);
    }
  }

  draw() {
    const { model, device, dtype, running, waiting, method, speedup } = this.state;
    const drafters = this.state.drafters.toSorted((a, b) => a.actor_id.localeCompare(b.actor_id));
    $("server").dataset.state = "up";
    $("server").textContent = `${short(model)} · ${dtype} on ${device} · ${running} running${waiting ? `, ${waiting} waiting` : ""}`;
    $("default-method").textContent = `${method} (default)`;
    const now = speedup[$("method").value || method];
    $("speedup").textContent = now ? `${now.toFixed(2)}×` : "–";
    const told = JSON.stringify(drafters);
    if (told === this.shown || $("drafters").contains(document.activeElement?.closest("select"))) return;
    this.shown = told;
    const focused = document.activeElement?.dataset?.order;
    $("drafters").replaceChildren(...drafters.map((one) => this.row(one, drafters)));
    $("no-drafters").hidden = drafters.length > 1;
    $("no-drafters").textContent = drafters.length
      ? "One drafter is there. Start a second one to swap: duoactor drafter --actor-id other, or duoactor up --drafters 2."
      : "No drafter is there: drafts are copied from earlier text, or made in the verifier. Start one with duoactor drafter.";
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
    const cell = (label, text, kind = "") => el("td", { "data-label": label, class: kind, text });
    return el(
      "tr",
      { "data-drafter": one.actor_id },
      el("th", { scope: "row", text: one.actor_id }),
      el("td", { "data-label": "state" }, el("span", { class: `state ${one.state}`, text: one.state })),
      cell("model", short(one.model_id)),
      cell("host", one.host),
      cell("streams", String(one.leases), "number"),
      cell("step", milliseconds(one.step_us), "number"),
      cell("drafted", String(one.drafted), "number"),
      cell("accepted", one.drafted ? percent(one.accepted / one.drafted) : "–", "number"),
      el("td", { class: "orders" }, ...(others.length ? [swap] : []), target, drain),
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
