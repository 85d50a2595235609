"""The live page in a real browser (Debian's chromium)."""

import json
import re
import shutil

import httpx2
import pytest
from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

from tests.system.conftest import KEY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROMPT = "Write a Python function that turns a duration such as 90s into a number."
TOKENS = 120
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium"),
]


@pytest.fixture(scope="module")
def url(up):
    up.status()
    return up.http


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def expected(said: ConsoleMessage) -> bool:
    return "401" in said.text or ("503" in said.text and said.location["url"].endswith("/live/state"))


@pytest.fixture
def page(browser, url):
    """The page with its key given; at the end nothing must have gone wrong in it, and nobody else been asked."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    wrong: list[str] = []
    # Browsers report an answer that is an error: before its key is given the page is refused, and on a busy machine a
    # verifier may take longer for its status than a probe waits, which the page says and asks again.
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and not expected(said) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(url + "/") else None)
    page.goto(url)
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("[data-drafter]")).to_have_count(2)
    yield page
    assert wrong == []
    context.close()


def truth(url: str, **changes) -> str:
    """The same from the API, by the target alone."""
    ask = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "temperature": 0, **changes}
    headers = {"authorization": f"Bearer {KEY}"}
    ask["speculative"] = False
    answer = httpx2.post(f"{url}/v1/chat/completions", json=ask, headers=headers, timeout=120)
    return answer.json()["choices"][0]["message"]["content"]


def ask(page: Page, **fields: str) -> None:
    for name, value in {"Prompt": PROMPT, "Most tokens": str(TOKENS), **fields}.items():
        page.get_by_label(name, exact=True).fill(value)
    page.get_by_role("button", name="Send").click()


def finished(page: Page) -> None:
    expect(page.locator("body")).to_have_attribute("data-busy", "no", timeout=60_000)
    expect(page.get_by_role("alert")).to_be_hidden()


def legend(page: Page) -> dict[str, int]:
    rows = page.locator("#legend li")
    return {row.get_attribute("data-origin"): int(row.locator("b").inner_text()) for row in rows.all()}


def test_the_text_is_the_apis_and_every_token_has_an_origin_a_round_and_a_tree(page, url):
    page.get_by_label("Method").select_option("tree")  # which always drafts
    ask(page)
    finished(page)
    assert page.locator("#answer").text_content() == truth(url)
    tokens = page.locator("#answer .t")
    counts = legend(page)
    assert sum(counts.values()) == tokens.count()
    assert {origin: page.locator(f"#answer .t.{origin}").count() for origin in counts} == counts
    assert counts["target"] and counts["draft"] + counts["retrieved"]
    rounds = int(page.locator("#position").get_attribute("max"))
    assert counts["target"] >= rounds, "every round ends with the target's own"
    expect(page.locator("#round")).to_have_text(re.compile(f"round \\d+ of {rounds}"))
    assert page.locator("#tree .node.accepted").count() > 1, "the round with the most accepted stays in view"
    expect(page.locator("#timeline .verify")).to_have_attribute("d", re.compile("M"))
    expect(page.locator("#timeline .draft")).to_have_attribute("d", re.compile("M"))
    # a token leads to its round, where it is the accepted one
    last = page.locator("#answer .t.draft, #answer .t.retrieved").last
    last.click()
    number = last.get_attribute("data-round")
    expect(page.locator("#round")).to_have_text(f"round {number} of {rounds}")
    expect(page.locator("#token")).to_contain_text(f"round {number}")
    accepted = page.locator("#tree .node.accepted").count()
    assert accepted == page.locator(f'#answer .t[data-round="{number}"]').count()
    page.get_by_role("button", name="Play slowly").click()
    expect(page.locator("#facts")).to_contain_text("slowed down")
    page.get_by_role("button", name="Pause").click()


def test_a_swap_in_mid_stream_changes_the_drafter_and_not_the_text(page, url):
    fields = {"Temperature": "0.8", "Most tokens": "1200"}
    page.get_by_label("Method").select_option("tree")  # which always drafts
    page.get_by_text("More", exact=True).click()
    ask(page, **fields, Seed="7")
    expect(page.locator("#answer .t").nth(20)).to_be_attached()
    expect(page.locator("#facts")).to_contain_text("drafts by drafter-")
    before = re.search(r"drafter-\d", page.locator("#facts").inner_text())[0]
    other = {"drafter-1": "drafter-2", "drafter-2": "drafter-1"}[before]
    page.locator(f'[data-drafter="{before}"]').get_by_role("button", name=f"Swap to {other}").click()
    finished(page)
    assert page.locator("#answer").text_content() == truth(url, temperature=0.8, max_tokens=1200, seed=7)
    page.get_by_role("button", name="First round").click()
    expect(page.locator("#facts")).to_contain_text("drafts by drafter-")
    page.get_by_role("button", name="Last round").click()
    expect(page.locator("#facts")).to_contain_text(other)


def test_a_race_is_run_by_the_target_alone_and_with_drafts_and_both_write_the_same(page):
    ask(page, Prompt=" ", **{"Most tokens": "40"})
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_role("button", name="Race").click()
    expect(page.locator("#lead")).to_contain_text("The same text", timeout=60_000)
    finished(page)
    expect(page.locator("#lead")).to_have_text(re.compile(r"\d+ tokens (ahead|behind) after [\d.]+ s: [\d.]+× as fast"))


def test_a_chat_remembers_its_turns_until_a_new_one_begins(page):
    asked = []
    page.on("request", lambda one: asked.append(json.loads(one.post_data)) if one.method == "POST" else None)
    page.get_by_label("Chat: remember earlier turns").check()
    for prompt in ("One", "Two"):
        ask(page, Prompt=prompt, **{"Most tokens": "8"})
        finished(page)
    assert [turn["role"] for turn in asked[-1]["messages"]] == ["user", "assistant", "user"]
    expect(page.locator("#turns li")).to_have_count(3)
    page.get_by_role("button", name="New chat").click()
    ask(page, Prompt="Three", **{"Most tokens": "8"})
    finished(page)
    assert [turn["content"] for turn in asked[-1]["messages"]] == ["Three"]


def test_the_keyboard_alone_does_it_and_stop_stops(page):
    prompt = page.get_by_label("Prompt", exact=True)
    page.get_by_label("Method").select_option("vanilla")  # the slowest: the answer must last until it is stopped
    page.get_by_label("Most tokens").fill("1500")
    prompt.press("Enter")
    expect(page.locator("#answer .t").nth(60)).to_be_attached()
    stop = page.get_by_role("button", name="Stop")
    stop.focus()
    stop.press("Enter")
    finished(page)
    expect(page.get_by_role("status")).to_contain_text("Stopped.")
    first = page.locator("#answer .t").first
    first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#answer .t").nth(3)).to_be_focused()
    expect(page.locator("#token")).to_contain_text("round")
    picture = page.locator("#picture")
    picture.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#round")).to_contain_text("round 2 of")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press(" ")
    swap = page.locator("[data-drafter]").first.get_by_role("button", name="Swap to")
    swap.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("moved 0 streams")


def stub(page: Page, *pieces: tuple[str, str], tree: str = "a") -> list[dict]:
    """Answers in the gateway's place, with pieces and their origins; returns the bodies of the requests."""
    count = len(pieces) - 1  # the last is the target's own
    stats = {"window": count, "accepted": count, "started_us": 10.0, "forward_us": 5.0, "wait_us": 0.0}
    stats |= {"draft_forwards": [], "gamma": None, "sequences": 0, "drafter": tree, "resting": False}
    nodes = {"token_ids": [*range(count)], "text": [tree] * count, "parents": [*range(-1, count - 1)]}
    nodes |= {"chance": [0.5] * count, "origins": [origin for _, origin in pieces[:-1]], "arrived_us": [0] * count}
    trace = {"token_ids": [*range(count + 1)], "pieces": [text for text, _ in pieces]}
    trace |= {"origins": [origin for _, origin in pieces], "chance": [0.5] * count + [None], "round": stats}
    event = json.dumps(
        {"choices": [{"finish_reason": "stop"}], "trace": {**trace, "tree": {**nodes, "path": [*range(count)]}}}
    )
    asked: list[dict] = []

    def answer(route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=f"data: {event}\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", answer)
    return asked


def test_a_schema_is_asked_for_and_what_it_forces_is_shown_as_such(page):
    asked = stub(page, ('{"a":', "forced"), ("1", "draft"), ("}", "target"))
    page.get_by_text("More", exact=True).click()
    page.get_by_label("JSON schema").fill('{"type": ')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    ask(page, **{"JSON schema of the answer": '{"type": "object"}'})
    finished(page)
    assert asked[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert legend(page) == {"draft": 1, "sibling": 0, "retrieved": 0, "forced": 1, "target": 1}
    assert page.locator("#tree .node.forced.accepted").count() == 1


def test_what_a_model_writes_is_text(page):
    evil = '<script>document.title="x"</script><img src=x onerror=alert(1)>'
    stub(page, (evil, "draft"), ("</div>", "target"), tree=evil)
    ask(page)
    finished(page)
    assert page.locator("#answer").text_content() == evil + "</div>"
    assert page.locator("main script, #answer img, #tree img").count() == 0
    expect(page).to_have_title("duoactor live")


@pytest.mark.parametrize("width", [360, 3840])
def test_nothing_sticks_out_at_any_width_in_the_dark_and_without_motion(browser, url, width):
    seen = {"color_scheme": "dark", "reduced_motion": "reduce"}
    context = browser.new_context(viewport={"width": width, "height": 900}, **seen)
    page = context.new_page()
    page.goto(url)
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("[data-drafter]")).to_have_count(2)
    ask(page, **{"Most tokens": "30"})
    finished(page)
    wide, dark, moving = page.evaluate(
        "() => [document.documentElement.scrollWidth, getComputedStyle(document.documentElement).backgroundColor,"
        " getComputedStyle(document.querySelector('#tree .node')).transitionDuration]"
    )
    assert wide == width
    assert dark == "rgb(16, 18, 22)"
    assert moving == "0s"
    context.close()
