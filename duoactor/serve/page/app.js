// Puts the page together: what is asked, what comes, and what the lens shows of it.

import { AnswerView } from "./answer.js";
import { events, Refused, useKey } from "./api.js";
import { Chat } from "./chat.js";
import { $, milliseconds, percent, rate, throttled } from "./dom.js";
import { Drafters } from "./drafters.js";
import { Player } from "./player.js";
import { Race } from "./race.js";
import { Answer, SHARED } from "./record.js";
import { Timeline } from "./timeline.js";
import { describe, TreeView } from "./tree.js";

const PICTURE_MS = 90; // between two drawings of the pictures while an answer comes
const RACED = 256; // tokens at most: they are written six times
const WIDE = matchMedia("(min-width: 62rem)"); // as in style.css: room for the lens beside the conversation

let shown = null; // the answer's turn that the lens shows
let running = null; // the AbortController of what is under way

const answer = () => shown?.answer ?? new Answer();
const player = new Player(() => answer().rounds, () => drawMoment());
const answerView = new AnswerView((token) => token.round && player.go(token.round - 1));
const tree = new TreeView($("tree"), (round) => player.go(round.number - 1));
const timeline = new Timeline($("timeline"), (round) => player.go(round.number - 1));
const race = new Race();
const chat = new Chat((turn) => {
  look(turn);
  openLens(true);
});
const drafters = new Drafters((error) => trouble(error, "state"), trouble, say);

const drawNew = throttled(() => draw(), PICTURE_MS);

// --- asking ---------------------------------------------------------------------------------------------------------

function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const body = {
    stream: true,
    trace: true,
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    seed: number("seed") ?? Math.floor(Math.random() * 2 ** 31), // so that a race can ask for the same text
    num_speculative_tokens: number("gamma"),
    method: $("method").value || undefined,
    response_format: format($("schema").value.trim()),
  };
  const content = $("prompt").value;
  return $("kind").value === "text"
    ? ["v1/completions", { ...body, prompt: content }]
    : ["v1/chat/completions", { ...body, messages: [...chat.messages, { role: "user", content }] }];
}

function format(schema) {
  if (!schema) return undefined;
  try {
    return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  } catch (error) {
    throw new Refused(400, `The JSON schema is not valid JSON: ${error.message}`);
  }
}

const send = () => job(async () => {
  if (!$("prompt").value.trim()) return;
  const asked = request();
  const question = $("prompt").value;
  chat.add({ role: "user", content: question });
  const before = shown;
  const turn = chat.add({ role: "assistant", raw: asked[0].endsWith("/completions") && !asked[1].messages });
  turn.answer = new Answer(asked);
  $("prompt").value = "";
  look(turn);
  say("answering …");
  let end = "";
  try {
    await stream(turn);
  } catch (error) {
    end = error.name === "AbortError" ? "stopped" : "cut off";
    if (error.name !== "AbortError") trouble(error);
  }
  if (!turn.content && !turn.thoughts) {
    if (end) return void takeBack(question, before);
    turn.note = "The model ended its answer at once.";
  } else {
    if (end !== "stopped") await drafters.ask(); // the plain rate as it is now, or that the server is gone
    turn.answer.plain = drafters.state?.plain ?? null;
    turn.note = [turn.answer.note(), end].filter(Boolean).join(" · ");
  }
  chat.show(turn);
  draw();
  if (player.mode === "live") player.go(turn.answer.best());
  say(chat.keep() ? `${end || "done"}: ${turn.answer.tokens.length} tokens` : "too long for this tab's store: a reload will lose it");
});

/** Nothing came of the question: it goes back into the box, and the lens to the turn that it showed. */
function takeBack(question, before) {
  chat.drop(2);
  $("prompt").value = question;
  look(before);
  say("");
}

async function stream(turn) {
  const { answer: coming } = turn;
  const [path, body] = coming.asked;
  try {
    for await (const batch of events(path, body, running.signal)) {
      for (const event of batch) coming.add(event);
      Object.assign(turn, { content: coming.content, thoughts: coming.thoughts });
      drawNew();
    }
  } catch (error) {
    if (error.param !== "trace" || !body.trace) throw error;
    coming.asked = [path, { ...body, trace: undefined }]; // too many are watched already: this one is not
    await stream(turn);
  }
}

/** Both ways write the same text, each alone on the machine, and neither knows what the other wrote. */
const compete = () => job(async () => {
  const { asked, content, thoughts, tokens } = answer();
  const [path, { trace, method, ...body }] = asked;
  const length = (content.length + thoughts.length) * Math.min(1, RACED / tokens.length);
  const drafting = method === "vanilla" ? "auto" : method;
  say("racing …");
  const lap = async (way, onShare) => {
    const made = new Answer();
    const own = { ...body, max_tokens: Math.min(RACED, tokens.length), method: way === "alone" ? "vanilla" : drafting, cache_salt: `race ${Math.random()}` };
    for await (const batch of events(path, own, running.signal)) {
      for (const event of batch) made.add(event);
      onShare((made.content.length + made.thoughts.length) / length);
    }
    const { num_draft_tokens: drafts, num_accepted_draft_tokens: accepted } = made.metrics.speculative_decoding;
    return { text: made.thoughts + made.content, perSecond: made.metrics.tokens_per_second, drafts, accepted };
  };
  await race.run(thoughts + content, lap, why);
  say("");
});

/** Why drafts lost a race, and what would help. */
function why(drafts, accepted) {
  const found = drafts ? `The target accepted ${accepted} of ${drafts} drafts, which saved less than they took.` : "Nothing was drafted.";
  return `${found} ${drafters.lack || "A draft model that agrees more would help: duoactor distill makes one."}`;
}

async function job(work) {
  if (running) return;
  running = new AbortController();
  busy(true);
  trouble(null);
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") say("stopped");
    else trouble(error);
  } finally {
    running = null;
    busy(false);
  }
}

function busy(now) {
  document.body.dataset.busy = now ? "yes" : "no";
  for (const id of ["send", "race", "new-chat"]) $(id).disabled = now;
  if (!now && document.activeElement === $("stop")) $("prompt").focus();
  $("stop").hidden = !now;
}

// --- telling --------------------------------------------------------------------------------------------------------

function say(text) {
  $("status").textContent = text;
}

/** Shows what went wrong. `null`: all is well again with `what`, which ends its own trouble only. */
function trouble(error, what = [0, 401, 503].includes(error?.status) ? "state" : "answer") {
  const box = $("trouble");
  if (!error) {
    box.hidden ||= box.dataset.what === what;
    return;
  }
  box.hidden = false;
  box.dataset.what = what;
  if (box.textContent !== error.message) box.textContent = error.message; // it is read out once
  if (error.status === 401) $("key-form").hidden = false;
}

// --- the lens -------------------------------------------------------------------------------------------------------

function openLens(open) {
  $("lens").hidden = !open;
  $("lens-toggle").setAttribute("aria-expanded", String(open));
  document.body.dataset.lens = open ? "open" : "closed";
  if (open && !WIDE.matches) $("lens-toggle").focus(); // what was pressed is hidden now
  draw();
}

/** Show that turn's answer; null: none. */
function look(turn) {
  shown = turn;
  chat.mark(turn);
  answerView.clear();
  tree.clear();
  player.reset();
  race.clear();
  draw();
  if (turn && !running) player.go(turn.answer.best());
}

function draw() {
  if (shown) chat.show(shown);
  if ($("lens").hidden) return;
  const { tokens, perSecond, overPlain, perRound, acceptance, firstMs, overlap, rounds, shared } = answer().figures();
  $("nothing").hidden = Boolean(tokens);
  $("seen").hidden = !tokens;
  answerView.update(answer());
  $("per-second").textContent = perSecond ? rate(perSecond) : "–";
  $("over-plain").textContent = overPlain ? `${overPlain.toFixed(2)}×` : "–";
  const plain = answer().plain ?? drafters.state?.plain;
  $("plain").textContent = plain ? `Plain decoding: ${plainly(plain)}${shared ? ` Not compared: ${SHARED}.` : ""}` : "";
  $("per-round").textContent = perRound ? perRound.toFixed(2) : "–";
  $("accepted").textContent = percent(acceptance);
  $("first").textContent = firstMs === null ? "–" : `${firstMs.toFixed(0)} ms`;
  $("overlap").textContent = percent(overlap);
  $("overlap").parentElement.hidden = overlap === null;
  $("position").max = Math.max(1, rounds);
  const drafted = answer().rounds.some((round) => round.nodes.length);
  for (const id of ["rounds", "time"]) $(id).hidden = !drafted;
  $("undrafted").hidden = drafted;
  $("undrafted").textContent = answer().asked?.[1].method === "vanilla" ? "No tree and no lanes: method vanilla drafts nothing." : "No tree and no lanes: nothing was drafted for this answer.";
  drawMoment();
}

const plainly = ({ tokens, per_second }) =>
  tokens
    ? `${rate(per_second)} tokens/s, measured over ${tokens} tokens since the server started.`
    : `about ${rate(per_second)} tokens/s, estimated from forwards. A race below measures it.`;

function drawMoment() {
  const moment = player.moment;
  const playing = player.mode === "playing";
  $("play").textContent = playing ? "Pause" : "Play slowly";
  if (!moment || $("lens").hidden || $("rounds").hidden) return;
  const { round, index, phase, us } = moment;
  tree.show(round, phase, us);
  timeline.show(answer().rounds, index, player.mode === "live" ? null : us);
  if (!playing || round !== drawMoment.round) {
    drawMoment.round = round;
    $("position").value = index + 1;
    $("round").textContent = `round ${index + 1} of ${answer().rounds.length}`;
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
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
$("stop").addEventListener("click", () => running?.abort());
$("race").addEventListener("click", compete);
$("lens-toggle").addEventListener("click", () => openLens($("lens").hidden));
$("new-chat").addEventListener("click", () => {
  chat.drop();
  look(null);
  say("");
  $("prompt").focus();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value);
  $("key-form").hidden = true;
  $("prompt").focus();
  drafters.ask();
});
$("play").addEventListener("click", toggle);
$("back").addEventListener("click", () => player.step(-1));
$("forward").addEventListener("click", () => player.step(1));
$("position").addEventListener("input", ({ target: { value, max } }) => (value === max ? player.live() : player.go(Number(value) - 1)));
$("picture").addEventListener("keydown", (event) => {
  const pressed = { ArrowLeft: () => player.step(-1), ArrowRight: () => player.step(1), Home: () => player.go(0), End: () => player.go(Infinity), " ": toggle }[event.key];
  if (pressed && event.target === event.currentTarget) {
    event.preventDefault();
    pressed();
  }
});
new ResizeObserver(throttled(() => drawMoment(), 100)).observe($("lens"));
WIDE.addEventListener("change", ({ matches }) => openLens(matches));
openLens(WIDE.matches);
