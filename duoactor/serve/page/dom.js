// Elements without markup: text is always text, whatever a model wrote.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An HTML element. `attributes` may hold `text`, `on` (listeners) and whatever setAttribute takes; null is left out. */
export function el(tag, attributes = {}, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

function made(element, { text, on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  if (text !== undefined) element.textContent = text;
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A token's text where its blanks must be seen. */
export function visible(text, limit = 14) {
  const shown = text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
  return shown.length > limit ? shown.slice(0, limit - 1) + "…" : shown;
}

export const percent = (share) => (share === null || !isFinite(share) ? "–" : `${Math.round(100 * share)}%`);

/** Tokens per second. */
export const rate = (perSecond) => perSecond.toFixed(perSecond < 20 ? 1 : 0);

export function milliseconds(us) {
  const ms = us / 1000;
  return ms >= 100 ? `${ms.toFixed(0)} ms` : ms >= 10 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(2)} ms`;
}

/** Calls `draw` at most once a frame, and at most every `pauseMs`: drawing must not take the processor from decoding. */
export function throttled(draw, pauseMs) {
  let due = false;
  let last = -Infinity;
  const run = (now) => {
    if (now - last < pauseMs) return void requestAnimationFrame(run);
    due = false;
    last = now;
    draw();
  };
  return () => {
    if (!due) {
      due = true;
      requestAnimationFrame(run);
    }
  };
}
