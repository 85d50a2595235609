// A model's Markdown as elements. No markup is parsed: every word becomes a text node, every link is checked.

import { el } from "./dom.js";

const DEEPEST = 6; // quotes and lists in one another; deeper ones are shown as they were written
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)[\s#]*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+/;
const COLUMNS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
// the lengths are bounded, so that a text of nothing but openings takes no longer than another
const INLINE = new RegExp(
  [
    /\\(?<escaped>[!-/:-@[-`{-~])/,
    /(?<ticks>`{1,3})(?!`)(?<code>[^]{1,1000}?)(?<!`)\k<ticks>(?!`)/,
    /\*\*(?=\S)(?<strong>[^]{1,1000}?)(?<=\S)\*\*(?!\*)/,
    /~~(?=\S)(?<del>[^]{1,500}?)(?<=\S)~~/,
    /\*(?=[^\s*])(?<em>[^*]{1,500})(?<=\S)\*/,
    /(?<!\w)_(?=\S)(?<under>[^_]{1,500})(?<=\S)_(?!\w)/,
    /!?\[(?<label>[^\]]{0,500})\]\((?<href>(?:[^\s()]|\([^\s()]{0,500}\)){1,1000})(?:\s+"[^"]{0,200}")?\)/,
    /(?<url>https?:\/\/[^\s<>"'`)\]]{1,1000}[^\s<>"'`)\].,;:!?])/,
  ]
    .map((one) => one.source)
    .join("|"),
  "g",
);

/** A text that grows, in `box`: blocks that stay the same keep their elements, and so what is selected in them. */
export class Markdown {
  constructor(box) {
    this.box = box;
    this.sources = [];
  }

  update(text) {
    const blocks = split(text.split("\n"));
    blocks.forEach((lines, i) => {
      const source = lines.join("\n");
      if (this.sources[i] === source) return;
      this.sources[i] = source;
      const made = block(lines, 0);
      if (this.box.children[i]) this.box.children[i].replaceWith(made);
      else this.box.append(made);
    });
    while (this.box.children.length > blocks.length) this.box.lastChild.remove();
    this.sources.length = blocks.length;
  }
}

/** A button that copies what `text()` gives then; `shown` is selected where the browser gives a page no clipboard. */
export function copier(text, shown) {
  const press = async ({ currentTarget: button }) => {
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(text());
      else {
        getSelection().selectAllChildren(shown);
        if (!document.execCommand("copy")) throw new Error("refused");
      }
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
  return el("button", { type: "button", class: "quiet copy", text: "Copy", on: { click: press } });
}

/** Lines by blocks. */
function split(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const end = after(lines, at);
    blocks.push(lines.slice(at, end));
    at = end;
  }
  return blocks;
}

/** The line after the block that begins with line `at`. */
function after(lines, at) {
  const run = (from, goes) => {
    while (from < lines.length && goes(lines[from], from)) from += 1;
    return from;
  };
  const fence = FENCE.exec(lines[at]);
  if (fence) return run(at + 1, (line) => !closes(line, fence[1])) + 1;
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  if (QUOTE.test(lines[at])) return run(at + 1, (line) => QUOTE.test(line));
  if (ITEM.test(lines[at])) {
    const inside = (line, i) => (line.trim() ? /^\s/.test(line) || ITEM.test(line) || (lines[i - 1].trim() && !begins(lines, i)) : lines[i + 1] !== undefined && (/^\s+\S/.test(lines[i + 1]) || ITEM.test(lines[i + 1])));
    return run(at + 1, inside);
  }
  if (isTable(lines, at)) return run(at + 2, (line) => line.includes("|"));
  return run(at + 1, (line, i) => line.trim() && !begins(lines, i));
}

const closes = (line, mark) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
const isTable = (lines, at) => lines[at].includes("|") && lines[at + 1]?.includes("-") && COLUMNS.test(lines[at + 1]);
const begins = (lines, i) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((one) => one.test(lines[i])) || isTable(lines, i);

function block(lines, depth) {
  const [first] = lines;
  const fence = FENCE.exec(first);
  if (fence) return code(lines.slice(1, lines.length > 1 && closes(lines.at(-1), fence[1]) ? -1 : undefined), fence[2]);
  const heading = HEADING.exec(first);
  if (heading) return el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
  if (RULE.test(first)) return el("hr");
  if (depth < DEEPEST && QUOTE.test(first)) return el("blockquote", {}, ...inside(lines.map((line) => line.replace(QUOTE, "")), depth));
  if (depth < DEEPEST && ITEM.test(first)) return list(lines, depth);
  if (isTable(lines, 0)) return table(lines);
  return el("p", {}, ...inline(lines.join("\n")));
}

const inside = (lines, depth) => split(lines).map((one) => block(one, depth + 1));

function code(lines, language) {
  const shown = el("code", { text: lines.join("\n") });
  const copy = copier(() => shown.textContent, shown);
  return el("figure", { class: "code" }, el("figcaption", {}, el("span", { text: language || "text" }), copy), el("pre", { tabindex: 0, "aria-label": "code" }, shown));
}

function list(lines, depth) {
  const [, indent, , number] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) items.push({ wide: found[0].length, lines: [line.slice(found[0].length)] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).wide, line.search(/\S|$/))));
  }
  const made = items.map(({ lines: own }) => {
    const [head, ...rest] = inside(own, depth);
    return el("li", {}, ...(head?.tagName === "P" ? head.childNodes : head ? [head] : []), ...rest);
  });
  return number ? el("ol", { start: number }, ...made) : el("ul", {}, ...made);
}

function table([head, , ...rows]) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, tag) => el("tr", {}, ...cells(line).map((cell) => el(tag, {}, ...inline(cell))));
  const made = el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, ...rows.map((line) => row(line, "td"))));
  return el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "table" }, made);
}

function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(text.slice(at, found.index), span(found.groups, found[0], depth + 1));
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}

function span({ escaped, code, strong, del, em, under, label, href, url }, whole, depth) {
  if (escaped) return escaped;
  if (code) return el("code", { text: code });
  if (strong) return el("strong", {}, ...inline(strong, depth));
  if (del) return el("del", {}, ...inline(del, depth));
  if (em ?? under) return el("em", {}, ...inline(em ?? under, depth));
  const to = URL.canParse(href ?? url) ? new URL(href ?? url) : null;
  // a picture would be asked for at once, without anybody's wish: it is a link as well
  if (!["https:", "http:", "mailto:"].includes(to?.protocol)) return whole;
  return el("a", { href: to.href, title: to.href, target: "_blank", rel: "noopener noreferrer" }, ...(url ? [url] : inline(label || href, depth)));
}
