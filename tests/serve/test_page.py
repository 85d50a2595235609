"""The page in a real browser, in front of answers that are made up: what it asks for, shows, keeps and never does."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from duoactor import embedded
from duoactor.serve import live
from tests.world.browser import CHROMIUM, NEEDED, launched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NEEDED)
HERE = "http://127.0.0.1:9"
FILES = Path(live.__file__).parent / "page"
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
STATE = {
    "model": "some/model",
    "about": "",
    "device": "cpu",
    "dtype": "bfloat16",
    "method": "auto",
    "running": 0,
    "waiting": 0,
    "drafters": [],
    "inline": "",
    "plain": {"tokens": 512, "per_second": 50.0},
}
DRAFTER = {
    "actor_id": "d1",
    "model_id": "draft",
    "state": "standby",
    "leases": 0,
    "step_us": 900.0,
    "drafted": 100,
    "accepted": 40,
    "host": "box",
}
Pieces = list[tuple[str, str]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


class Gateway:
    """Answers a page's requests."""

    def __init__(self) -> None:
        self.state: dict | None = STATE  # None: nobody is there
        self.key = ""  # key that a request must carry
        self.asked: list[dict] = []
        self.answers: list[str | int | None] = []  # bodies or statuses, the last for all that follow; None: never

    def __call__(self, route: Route) -> None:
        path = route.request.url.removeprefix(HERE)
        if route.request.method == "GET" and path != "/live/state":
            name = path.removeprefix("/page/").strip("/") or "index.html"
            kind = live.KINDS[name.rpartition(".")[2]]
            return route.fulfill(body=(FILES / name).read_bytes(), headers={**live.HEADERS, "content-type": kind})
        if self.state is None:
            return route.abort("connectionrefused")
        if self.key and route.request.headers.get("authorization") != f"Bearer {self.key}":
            return route.fulfill(status=401, json={"error": {"message": "Incorrect API key provided"}})
        if path == "/live/state":
            return route.fulfill(json=self.state)
        self.asked.append({"path": path, **route.request.post_data_json})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return route.fulfill(status=answer, json={"error": {"message": "too many", "param": "trace"}})
        if answer is not None:
            route.fulfill(content_type="text/event-stream", body=answer)
        return None


def events(
    *pieces: tuple[str, str], rate: float = 100.0, drafts: int = 0, end: str = "data: [DONE]\n\n", **more
) -> str:
    """A stream of one round, with pieces and their origins, of which the last is the target's own."""
    count = len(pieces) - 1
    stats = {"window": count, "accepted": count, "started_us": 0.0, "forward_us": 1e6 * (count + 1) / rate}
    stats |= {"wait_us": 0.0, "draft_forwards": [], "gamma": None, "sequences": 0, "drafter": "", "resting": False}
    stats |= {"streams": 1, "rows": count + 1, **more}
    nodes = {
        "token_ids": [*range(count)],
        "text": [text for text, _ in pieces[:-1]],
        "parents": [*range(-1, count - 1)],
    }
    nodes |= {"chance": [0.5] * count, "origins": [origin for _, origin in pieces[:-1]], "arrived_us": [0] * count}
    trace = {"token_ids": [*range(count + 1)], "pieces": [text for text, _ in pieces]}
    trace |= {"origins": [origin for _, origin in pieces], "chance": [0.5] * count + [None], "round": stats}
    trace |= {"tree": {**nodes, "path": [*range(count)]}}
    text = "".join(text for text, _ in pieces)
    told = {"num_draft_tokens": drafts, "num_accepted_draft_tokens": drafts // 2}
    metrics = {"tokens_per_second": rate, "time_to_first_token_ms": 12.0, "speculative_decoding": told}
    made = [
        {"choices": [{"delta": {"content": text}, "finish_reason": None}], "trace": trace},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "metrics": metrics},
    ]
    return "".join(f"data: {json.dumps(one)}\n\n" for one in made) + end


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def opened(browser: Browser, gateway: Gateway, tmp_path: Path):
    """Opens the page. At the end no script must have failed, and nobody else been asked; it leaves a picture."""
    contexts, wrong = [], []

    def open_page(viewport: dict = WIDE, **seen) -> Page:
        contexts.append(context := browser.new_context(viewport=viewport, **seen))
        page = context.new_page()
        context.route("**/*", gateway)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(HERE) else None)
        page.goto(HERE)
        expect(page.locator("#server")).not_to_have_text("connecting …")
        return page

    yield open_page
    for context in contexts:
        context.pages[0].screenshot(path=tmp_path / "page.png")
        context.close()
    assert wrong == []


def ask(page: Page, question: str = "Why?") -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-busy", "no")


# --- the conversation ------------------------------------------------------------------------------------------------


def test_turns_go_on_from_one_another_and_stay_on_reload_until_a_new_chat(opened, gateway):
    gateway.answers = [events(("**One**", "draft"), (".", "target")), events(("Two", "target"))]
    page = opened()
    ask(page, "first")
    ask(page, "second\nline")
    turns = [turn["content"] for turn in gateway.asked[-1]["messages"]]
    assert turns == ["first", "**One**.", "second\nline"]
    page.reload()
    expect(page.locator("#turns > li")).to_have_count(4)
    expect(page.locator("#turns .assistant strong")).to_have_text("One")
    ask(page, "third")
    assert [turn["role"] for turn in gateway.asked[-1]["messages"]] == ["user", "assistant"] * 2 + ["user"]
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#turns > li")).to_have_count(0)
    page.reload()
    ask(page, "anew")
    assert [turn["content"] for turn in gateway.asked[-1]["messages"]] == ["anew"]


def test_escape_stops_and_a_question_without_an_answer_goes_back_into_the_box(opened, gateway):
    gateway.answers = [None]
    page = opened()
    page.get_by_label("Message", exact=True).fill("Why?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("body")).to_have_attribute("data-busy", "no")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Why?")
    expect(page.locator("#turns > li")).to_have_count(0)


def test_a_thought_is_folded_away_and_is_not_sent_back(opened, gateway):
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    gateway.answers = [f"data: {json.dumps(thought)}\n\n" + events(("Yes", "target"))]
    page = opened()
    ask(page)
    expect(page.locator(".assistant .thoughts")).not_to_have_attribute("open", "")
    expect(page.locator(".assistant .markdown")).to_have_text("Yes")
    ask(page, "Sure?")
    assert gateway.asked[-1]["messages"][1] == {"role": "assistant", "content": "Yes"}


def test_options_reach_the_request_and_a_text_to_continue_is_no_chat(opened, gateway):
    gateway.answers = [events(("}", "target"))]
    page = opened()
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("JSON schema").fill('{"type": ')
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Why?")
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    page.get_by_label("Temperature").fill("")
    page.get_by_label("Message is").select_option("a text to continue")
    ask(page, "def f(")
    (asked,) = gateway.asked
    assert (asked["path"], asked["prompt"], asked["max_tokens"]) == ("/v1/completions", "def f(", 1000)
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "temperature" not in asked, "the model's own"


# --- what a model writes ---------------------------------------------------------------------------------------------

EVIL = [
    '<script>document.title="x"</script><img src=x onerror=\'document.title="x"\'>',
    '[press](javascript:document.title="x") ![pixel](http://elsewhere.example/pixel.png)',
    "[data](data:text/html,<script>1</script>) <iframe src=http://elsewhere.example></iframe>",
    '```html\n<script>document.title="x"</script>\n```',
    "`<b onclick=alert(1)>` **<i>** | a | <svg onload=alert(1)> |",
]


@pytest.mark.parametrize("evil", EVIL)
def test_a_script_in_an_answer_is_text_and_nothing_is_asked_for_by_it(opened, gateway, evil):
    gateway.answers = [events((evil, "draft"), (".", "target"))]
    page = opened()
    ask(page, evil)
    assert page.locator("#answer").text_content() == evil + "."
    assert page.locator("main :is(script, img, iframe, i, b[onclick], svg[onload])").count() == 0
    assert all(
        one.startswith(("http:", "https:"))
        for one in page.locator("#turns a").evaluate_all("all => all.map(a => a.protocol)")
    )
    expect(page).to_have_title("duoactor")


RENDER = """async texts => {
    const { Markdown } = await import("/page/markdown.js");
    const box = document.createElement("div");
    const view = new Markdown(box);
    for (const text of texts) view.update(text);
    for (const element of box.querySelectorAll("*")) {
        const names = [...element.attributes].map((one) => one.name);
        for (const name of names) if (!["href", "start"].includes(name)) element.removeAttribute(name);
    }
    return box.innerHTML.replaceAll('"', "");
}"""
COPY = "<button>Copy</button></figcaption><pre><code>"
MARKDOWN = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A *b* #\ntext\n---": "<h3>A <em>b</em></h3><p>text</p><hr>",
    "**b _c_** ~~d~~ `e*f*`": "<p><strong>b <em>c</em></strong> <del>d</del> <code>e*f*</code></p>",
    "\\*g\\* 2 * 3 * 4 snake_case_name": "<p>*g* 2 * 3 * 4 snake_case_name</p>",
    "```py\nif a:\n\n    b\n```\nend": (
        f"<figure><figcaption><span>py</span>{COPY}if a:\n\n    b</code></pre></figure><p>end</p>"
    ),
    "~~~\n```\n~~~~": f"<figure><figcaption><span>text</span>{COPY}```</code></pre></figure>",
    "- a\n- b\n  1. c\n  2. d\n\n  more\n- e\n\nend": (
        "<ul><li>a</li><li>b<ol start=1><li>c</li><li>d</li></ol><p>more</p></li><li>e</li></ul><p>end</p>"
    ),
    "3. a\n\n4. b": "<ol start=3><li>a</li><li>b</li></ol>",
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "|a|b|\n|-|:-:|\n|`x`|**y**|\nend": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td><code>x</code></td><td><strong>y</strong></td></tr></tbody></table></div><p>end</p>"
    ),
    '[a b](https://x.example/(y) "t"), https://z.example/q?a=1.': (
        "<p><a href=https://x.example/(y)>a b</a>, <a href=https://z.example/q?a=1>https://z.example/q?a=1</a>.</p>"
    ),
    "[no](javascript:1) [a](/b)": "<p>[no](javascript:1) [a](/b)</p>",
    "a < b && c > d": "<p>a &lt; b &amp;&amp; c &gt; d</p>",
}


@pytest.fixture(scope="module")
def renderer(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.route("**/*", Gateway())
    page.goto(HERE)
    yield page
    page.close()


@pytest.mark.parametrize("text", MARKDOWN)
def test_markdown_is_shown_as_what_it_means_however_it_arrives(renderer, text):
    pieces = [text[:end] for end in range(len(text) + 1)]
    assert renderer.evaluate(RENDER, [text]) == MARKDOWN[text]
    assert renderer.evaluate(RENDER, pieces) == MARKDOWN[text]


OPENINGS = ["*", "**a", "[", "![", "`", "> ", "- ", "_a", "~~", "|", "\\", "https://", "1. ", "``"]


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_text_of_nothing_but_openings_is_shown_and_does_not_hang(renderer, opening):
    for text in (
        opening * 20_000,
        (opening + "\n") * 2_000,
        "".join(" " * 2 * n + opening + "x\n" for n in range(200)),
    ):
        assert renderer.evaluate(RENDER, [text])


def test_code_is_copied_as_it_stands(opened, gateway):
    gateway.answers = [events(("```py\nx = 1\n\ny\n```", "target"))]
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=HERE)
    ask(page)
    page.locator("figure").get_by_role("button", name="Copy").click()
    expect(page.locator("figure button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n\ny"


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_are_this_answers_over_the_plain_rate_with_the_tokens_that_it_rests_on(opened, gateway):
    gateway.answers = [events(*[("a", "remembered")] * 3, *[("b", "retrieved")] * 2, ("c", "target"), rate=125.0)]
    page = opened()
    ask(page)
    note = page.locator(".assistant .note")
    expect(note).to_contain_text("6 tokens · 125 tokens/s · 2.50× plain decoding")
    expect(note).to_contain_text("(50 tokens/s over 512 tokens)")
    expect(page.locator("#plain")).to_have_text(
        "Plain decoding: 50 tokens/s, measured over 512 tokens since the server started."
    )
    expect(note).to_contain_text("3 of them repeated from memory")
    expect(page.locator("#over-plain")).to_have_text("2.50×")
    rows = page.locator("#legend li:visible")
    assert rows.all_inner_texts() == ["copied2", "repeated from memory3", "target's own1"]
    gateway.state = {**STATE, "plain": {"tokens": 1000, "per_second": 10.0}}
    ask(page, "again")
    expect(page.locator(".assistant .note").nth(1)).to_contain_text("12.50×")
    page.get_by_role("button", name="Lens", exact=True).nth(1).click()
    expect(page.locator("#over-plain")).to_have_text("2.50×")


@pytest.mark.parametrize("others", [{"streams": 2}, {"rows": 9}], ids=["decoding", "reading a prompt"])
def test_an_answer_beside_other_requests_is_not_compared_with_plain_decoding(opened, gateway, others):
    gateway.answers = [events(("a", "draft"), ("c", "target"), **others)]
    page = opened()
    ask(page)
    expect(page.locator(".assistant .note")).to_have_text("2 tokens · 100 tokens/s · other requests ran meanwhile")
    expect(page.locator("#over-plain")).to_have_text("–")
    expect(page.locator("#plain")).to_contain_text("since the server started. Not compared: other requests ran")


def test_a_plain_rate_that_is_an_estimate_is_told_as_one_and_compared_with_nothing(opened, gateway):
    gateway.state = {**STATE, "plain": {"tokens": 0, "per_second": 50.0}}
    gateway.answers = [events(("a", "draft"), ("c", "target"))]
    page = opened()
    ask(page)
    expect(page.locator("#over-plain")).to_have_text("–")
    expect(page.locator("#plain")).to_have_text(
        "Plain decoding: about 50 tokens/s, estimated from forwards. A race below measures it."
    )
    expect(page.locator(".assistant .note")).to_have_text("2 tokens · 100 tokens/s")


def test_without_drafts_tree_lanes_and_drafters_are_a_line_each(opened, gateway):
    gateway.answers = [events(("c", "target"))]
    page = opened()
    ask(page)
    for part in ("#rounds", "#time"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("#undrafted")).to_have_text("No tree and no lanes: nothing was drafted for this answer.")
    expect(page.locator("#no-drafters")).to_contain_text("duoactor up MODEL --draft DRAFT adds a draft model")
    expect(page.locator("#drafters li")).to_have_count(0)


def test_a_ninth_watched_answer_comes_unwatched(opened, gateway):
    gateway.answers = [429, events(("c", "target"))]
    page = opened()
    ask(page)
    expect(page.locator(".assistant .markdown")).to_have_text("c")
    assert [asked.get("trace") for asked in gateway.asked] == [True, None]
    expect(page.get_by_role("alert")).to_be_hidden()


def laps(*rates: float, text: str = "ab", drafts: int = 10) -> list[str]:
    answer = (("a", "draft"), ("b", "target")) if text == "ab" else ((text, "target"),)
    return [events(*answer, rate=rate, drafts=at % 2 * drafts) for at, rate in enumerate(rates)]


WON = "With drafts 2.50× as fast (median of 3; 2.00× to 3.00×). All wrote the text above."
UNSURE = "No sure winner: with drafts 1.10× as fast (median of 3; 0.90× to 1.20×)."
LOST = (
    "Drafts lost: 0.80× as fast (median of 3; 0.70× to 0.90×). All wrote the text above. The target accepted 15 of 30 "
)
LOST += "drafts, which saved less than they took. No draft model is loaded"
IDLE = "Nothing was drafted. A draft model that agrees more would help: duoactor distill"
RACES = {
    "won": (laps(10, 20, 10, 25, 10, 30), STATE, WON),
    "unsure": (laps(10, 9, 10, 12, 10, 11), STATE, UNSURE),
    "lost": (laps(10, 9, 10, 8, 10, 7), STATE, LOST),
    "idle": (laps(10, 9, 10, 8, 10, 7, drafts=0), {**STATE, "drafters": [DRAFTER]}, IDLE),
    "different": (laps(10, 20, 10, 20, 10, 20, text="c"), STATE, "They wrote another text: please report it."),
}


@pytest.mark.parametrize("race", RACES)
def test_a_race_takes_three_turns_and_says_who_won_by_how_much_and_why(opened, gateway, race):
    answers, gateway.state, verdict = RACES[race]
    gateway.answers = [*laps(100), *answers]
    page = opened()
    ask(page)
    page.get_by_role("button", name="Race this answer").click()
    expect(page.locator("#verdict")).to_contain_text(verdict)
    expect(page.locator("#laps tr")).to_have_count(3)
    first, *raced = gateway.asked
    assert [asked.get("method") for asked in raced] == ["vanilla", None] * 3
    assert {asked["seed"] for asked in raced} == {first["seed"]}, "the text is the same at every temperature"
    assert {asked["max_tokens"] for asked in raced} == {2} and not any("trace" in asked for asked in raced)
    assert len({asked["cache_salt"] for asked in raced}) == 6, "nobody knows what the others wrote"
    assert all(asked["messages"] == first["messages"] for asked in raced)


# --- the server ------------------------------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_one_message_and_nothing_stale_until_it_is_back(opened, gateway):
    gateway.state = {**STATE, "running": 3, "drafters": [DRAFTER]}
    gateway.answers = [events(("Half", "draft"), (" a", "target"), end="")]
    page = opened()
    expect(page.locator("#server")).to_have_text("model · bfloat16 on cpu · 3 running")
    page.get_by_label("Message", exact=True).fill("Why?")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .note")).to_contain_text("cut off")
    expect(page.locator(".assistant .markdown")).to_have_text("Half a")
    gateway.state = None
    expect(page.locator("#server")).to_have_text("server gone")
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("The server is gone.")
    expect(page.locator("[data-drafter]:visible")).to_have_count(0)
    ask(page, "Still there?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Still there?")
    expect(page.locator("#answer")).to_have_text("Half a")
    expect(page.get_by_role("alert")).to_have_count(1)
    gateway.state = STATE
    expect(page.locator("#server")).to_have_text("model · bfloat16 on cpu · 0 running")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#turns > li")).to_have_count(2)


def test_a_gateway_with_keys_is_locked_until_one_is_given_which_the_tab_keeps(opened, gateway):
    gateway.key, gateway.answers = "k1", [events(("Open", "target"))]
    page = opened()
    expect(page.locator("#server")).to_have_text("locked")
    expect(page.get_by_role("alert")).to_have_text("This gateway asks for a key.")
    for key, said in (("k0", "locked"), (" k1 ", "model · bfloat16 on cpu · 0 running")):
        page.get_by_label("API key").fill(key)
        page.get_by_label("API key").press("Enter")
        expect(page.locator("#server")).to_have_text(said)
        if said == "locked":
            expect(page.get_by_role("alert")).to_have_text("That is no key of this gateway.")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.reload()
    ask(page)
    expect(page.locator(".assistant .markdown")).to_have_text("Open")


# --- everybody's eyes and hands --------------------------------------------------------------------------------------

LONG = "# Title\n\n| a | b |\n|-|-|\n" + "|x" * 30 + "|\n\n```\n" + "y" * 400 + "\n```\n" + "z" * 400
SHADES = """all => {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const seen = () => [...paint.getImageData(0, 0, 1, 1).data];
    const fill = (colour) => {
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
    };
    const written = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return all.filter((e) => e.checkVisibility() && written(e)).map((e) => {
        const layers = [];
        for (let at = e; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
        layers.forEach(fill);
        const behind = seen();
        fill(getComputedStyle(e).color);
        return [`${e.tagName} ${e.id} ${e.className} ${e.textContent.slice(0, 30)}`, behind, seen()];
    });
}"""
OUT = """all => all
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1)
    .map((e) => e.outerHTML)"""


def luminance(colour: list[int]) -> float:
    """The relative luminance of WCAG 2."""
    linear = [c / 12.92 if (c := one / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for one in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_and_every_control_has_a_name(opened, gateway, scheme):
    gateway.state = {**STATE, "drafters": [DRAFTER, {**DRAFTER, "actor_id": "d2"}]}
    origins = ("draft", "sibling", "retrieved", "remembered", "forced")
    gateway.answers = [events((LONG, "draft"), *((f" {one}", one) for one in origins), ("end", "target"))]
    page = opened(color_scheme=scheme, reduced_motion="reduce")
    ask(page)
    page.get_by_text("Options", exact=True).click()
    low = [
        (name, round(ratio, 2))
        for name, *pair in page.locator("body *:not(svg *, noscript, :disabled)").evaluate_all(SHADES)
        for dark, light in [sorted(map(luminance, pair))]
        if (ratio := (light + 0.05) / (dark + 0.05)) < 4.5
    ]
    assert low == []
    named = page.locator("button, input, select, textarea").evaluate_all(
        "all => all.map(e => e.textContent.trim() || e.ariaLabel || e.labels?.[0]?.textContent.trim())"
    )
    assert all(named)
    heads = page.locator("h1, h2, h3").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert heads[0] == 1 and all(after <= before + 1 for before, after in pairwise(heads))


@pytest.mark.parametrize("width", [390, 1280, 3840])
@pytest.mark.parametrize("lens", [False, True], ids=["chat", "lens"])
def test_nothing_sticks_out_in_the_dark_and_without_motion_and_a_narrow_screens_lens_is_closed(
    opened, gateway, width, lens
):
    gateway.answers = [events((LONG, "draft"), ("end", "target"))]
    page = opened({"width": width, "height": 844}, color_scheme="dark", reduced_motion="reduce")
    toggle = page.get_by_role("button", name="Lens", exact=True).first
    expect(toggle).to_have_attribute("aria-expanded", str(width > 390).lower())
    ask(page, LONG)
    if (toggle.get_attribute("aria-expanded") == "true") != lens:
        toggle.click()
    expect(page.locator("#lens")).to_be_visible(visible=lens)
    expect(page.locator("#chat")).to_be_visible(visible=width > 390 or not lens)
    wide, dark = page.evaluate(
        "() => [document.documentElement.scrollWidth, getComputedStyle(document.documentElement).backgroundColor]"
    )
    assert (wide, dark) == (width, "rgb(16, 18, 22)")
    out = page.locator("main :is(section, form, li, p, figure, button, h2)").evaluate_all(OUT)
    assert out == []
    if lens:
        assert page.locator("#tree .node").first.evaluate("e => getComputedStyle(e).transitionDuration") == "0s"


def test_on_a_narrow_screen_the_lens_of_an_answer_takes_the_focus_and_gives_the_chat_back(opened, gateway):
    gateway.answers = [events(("a", "draft"), ("c", "target"))]
    page = opened(NARROW)
    ask(page)
    page.locator(".assistant").get_by_role("button", name="Lens").press("Enter")
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.locator("#lens-toggle")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#chat")).to_be_visible()


def test_the_keyboard_alone_reaches_the_answers_rounds(opened, gateway):
    gateway.answers = [events(("a", "draft"), ("b", "draft"), ("c", "target"))]
    page = opened()
    ask(page)
    page.locator("#answer .t").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#answer .t").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#token")).to_contain_text("round 1")
    page.locator("#picture").focus()
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_a_fresh_page_says_what_the_bundled_model_can_do_and_which_command_serves_a_real_one(gateway, opened):
    gateway.state = STATE | {"about": f"{embedded.ABOUT}. {embedded.A_REAL_ONE}."}
    about = opened().locator("#about")
    expect(about).to_contain_text("translates captions of pictures from German")
    expect(about).to_contain_text("duoactor up smollm2 serves")
