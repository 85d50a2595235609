// Puts the page together: what is asked, what comes, and what is shown of it.

import { AnswerView } from "./answer.js";
import { events, Refused, useKey } from "./api.js";
import { drawCharts } from "./charts.js";
import { $, el, milliseconds, percent, throttled } from "./dom.js";
import { Drafters } from "./drafters.js";
import { Player } from "./player.js";
import { Race } from "./race.js";
import { Answer } from "./record.js";
import { Timeline } from "./timeline.js";
import { describe, TreeView } from "./tree.js";

const PICTURE_MS = 90; // between two drawings of the pictures while an answer comes

let answer = new Answer();
let running = null; // the AbortController of the answer under way
let turns = []; // of the chat so far
const race = new Race();

const player = new Player(() => answer.rounds, () => drawMoment());
const answerView = new AnswerView((token) => token.round && player.go(token.round - 1));
const tree = new TreeView($("tree"), (round) => player.go(round.number - 1));
const timeline = new Timeline($("timeline"), (round) => player.go(round.number - 1));
const drafters = new Drafters((error) => trouble(error, "state"), say);

const drawText = throttled(() => answerView.update(answer), 0);
const drawNew = throttled(() => {
  drawFigures();
  drawMoment();
}, PICTURE_MS);

// --- asking ---------------------------------------------------------------------------------------------------------

function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const chat = $("kind").value === "chat";
  const body = {
    stream: true,
    trace: true,
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    seed: number("seed"),
    num_speculative_tokens: number("gamma"),
    method: $("method").value || undefined,
    response_format: format($("schema").value.trim()),
  };
  const content = $("prompt").value;
  const before = $("chat").checked ? turns : [];
  return chat
    ? ["v1/chat/completions", { ...body, messages: [...before, { role: "user", content }] }]
    : ["v1/completions", { ...body, prompt: content }];
}

function format(schema) {
  if (!schema) return undefined;
  try {
    return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  } catch (error) {
    throw new Refused(0, `The JSON schema is not valid JSON: ${error.message}`);
  }
}

const send = () => job(async () => {
  const [path, body] = request();
  await stream(path, body);
  if ($("chat").checked && body.messages) goOn(body.messages);
});

/** Both write the same text, each alone on the machine, and neither knows what the other wrote. */
const compete = () => job(async () => {
  const [path, body] = request();
  body.seed ??= Math.floor(Math.random() * 2 ** 31);
  for (const method of ["vanilla", body.method]) {
    race.begin(body.max_tokens);
    await stream(path, { ...body, method, cache_salt: crypto.randomUUID() }, () => race.take(answer));
  }
  race.end();
});

async function stream(path, body, each) {
  answer = new Answer();
  answerView.clear();
  tree.clear();
  player.reset();
  say("Answering …");
  for await (const batch of events(path, body, running.signal)) {
    for (const event of batch) {
      if (event.error) throw new Refused(0, event.error.message);
      answer.add(event);
    }
    each?.();
    drawText();
    drawNew();
  }
}

async function job(work) {
  if (running || !$("prompt").value.trim()) return;
  running = new AbortController();
  busy(true);
  trouble(null);
  try {
    await work();
    trouble(null);
    say(summary());
  } catch (error) {
    if (error.name === "AbortError") say(`Stopped. ${summary()}`);
    else trouble(error);
  } finally {
    running = null;
    busy(false);
    answerView.update(answer);
    drawFigures();
    if (player.mode === "live") player.go(answer.best());
    else drawMoment();
  }
}

/** The answer is a turn of the chat now. */
function goOn(messages) {
  turns = [...messages, { role: "assistant", content: answer.tokens.map((token) => token.text).join("") }];
  $("prompt").value = "";
  showTurns();
}

function showTurns() {
  $("turns").replaceChildren(...turns.slice(0, -1).map(({ role, content }) => el("li", { class: role, text: content })));
  $("new-chat").hidden = !turns.length;
}

function summary() {
  const { tokens, perSecond, perRound } = answer.figures();
  if (!perSecond) return `${tokens} tokens.`;
  return `${tokens} tokens, ${perSecond.toFixed(0)} tokens/s, ${perRound?.toFixed(2) ?? "–"} a round (the target alone: 1).`;
}

function busy(now) {
  document.body.dataset.busy = now ? "yes" : "no";
  for (const id of ["send", "race"]) $(id).disabled = now;
  $("stop").disabled = !now;
}

// --- telling --------------------------------------------------------------------------------------------------------

function say(text) {
  $("status").textContent = text;
}

/** Shows what went wrong. `null`: all is well again with `what`, which ends its own trouble only. */
function trouble(error, what = "answer") {
  const box = $("trouble");
  if (!error) {
    box.hidden ||= box.dataset.what === what;
    return;
  }
  box.hidden = false;
  box.dataset.what = what;
  box.textContent = error.message;
  if (error.status === 401) $("key-form").hidden = false;
}

function drawFigures() {
  const { perSecond, perRound, acceptance, firstMs, overlap, rounds } = answer.figures();
  $("per-second").textContent = perSecond ? perSecond.toFixed(0) : "–";
  $("per-round").textContent = perRound ? perRound.toFixed(2) : "–";
  $("accepted").textContent = percent(acceptance);
  $("first").textContent = firstMs === null ? "–" : `${firstMs.toFixed(0)} ms`;
  $("overlap").textContent = percent(overlap);
  $("position").max = Math.max(1, rounds);
}

// --- the moment that is shown ---------------------------------------------------------------------------------------

function drawMoment() {
  const moment = player.moment;
  const playing = player.mode === "playing";
  $("play").textContent = playing ? "Pause" : "Play slowly";
  $("live").setAttribute("aria-pressed", String(player.mode === "live"));
  for (const id of ["first-round", "back", "play", "forward", "last-round", "position"]) $(id).disabled = !moment;
  const zoom = $("zoom").value === "all" ? null : Number($("zoom").value);
  if (!moment) {
    timeline.show([], 0, zoom, null);
    drawCharts([], -1);
    $("moment").textContent = "Nothing has been asked yet.";
    return;
  }
  const { round, index, phase, us } = moment;
  tree.show(round, phase, us);
  timeline.show(answer.rounds, index, zoom, player.mode === "live" ? null : us);
  if (!playing || round !== drawMoment.round) {
    drawMoment.round = round;
    drawCharts(answer.rounds, index);
    $("position").value = index + 1;
    $("round").textContent = `round ${index + 1} of ${answer.rounds.length}`;
    $("moment").textContent = describe(round);
    answerView.mark(player.mode === "live" ? 0 : round.number);
  }
  const facts = [`target's forward ${milliseconds(round.end - round.start)}`];
  if (round.wait) facts.push(`waited ${milliseconds(round.wait[1])} for drafts`);
  if (round.own_drafts) facts.push("drafts by the verifier itself, between two forwards");
  else if (round.drafter) facts.push(round.resting ? `${round.drafter} rests` : `drafts by ${round.drafter}`);
  if (playing) facts.push(`slowed down ${Math.round(player.slowdown)} times`);
  $("facts").textContent = facts.join(" · ");
}

// --- keys and buttons -----------------------------------------------------------------------------------------------

const toggle = () => (player.mode === "playing" ? player.pause() : player.play());

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("race").addEventListener("click", compete);
$("new-chat").addEventListener("click", () => {
  turns = [];
  showTurns();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value);
  $("key-form").hidden = true;
  drafters.ask();
});
const buttons = {
  "first-round": () => player.go(0),
  back: () => player.step(-1),
  play: toggle,
  forward: () => player.step(1),
  "last-round": () => player.go(answer.rounds.length - 1),
  live: () => player.live(),
};
for (const [id, pressed] of Object.entries(buttons)) $(id).addEventListener("click", pressed);
$("position").addEventListener("input", (event) => player.go(Number(event.target.value) - 1));
$("zoom").addEventListener("change", () => drawMoment());
$("speed").addEventListener("change", (event) => (player.speed = Number(event.target.value)));
$("picture").addEventListener("keydown", (event) => {
  if (event.target !== event.currentTarget) return;
  const pressed = { ArrowLeft: buttons.back, ArrowRight: buttons.forward, Home: buttons["first-round"], End: buttons["last-round"], " ": toggle }[event.key];
  if (pressed && answer.rounds.length) {
    event.preventDefault();
    pressed();
  }
});
new ResizeObserver(throttled(() => drawMoment(), 100)).observe(document.querySelector("main"));

busy(false);
drawMoment();
