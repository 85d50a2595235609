"""Take docs/live-page.png of a running gateway, by Debian's chromium. ``duoactor demo`` makes the target that it shows.

duoactor up --target ~/.cache/duoactor/models/bundled-8x1536
python docs/live_page.py http://127.0.0.1:8000/
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

PICTURE = Path(__file__).with_name("live-page.png")
CAPTIONS = (
    "Eine Frau in einem roten Kleid sitzt auf einer Bank.",
    "Ein junges Mädchen in einem rosa Kleid läuft über den Strand.",
    "Drei Männer in Anzügen stehen vor einem Gebäude.",
)


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-busy", "no", timeout=120_000)


def main(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(address)
        for number, caption in enumerate(CAPTIONS, 1):
            if number == len(CAPTIONS):
                page.get_by_text("Options", exact=True).click()
                page.get_by_label("Method").select_option("tree")
                page.get_by_text("Options", exact=True).click()
            ask(page, f"Translate German to English: {caption}")
            if number == 1:  # plain decoding is measured by a race
                page.get_by_role("button", name="Race this answer").click()
                expect(page.locator("body")).to_have_attribute("data-busy", "no", timeout=120_000)
        page.get_by_label("Message", exact=True).blur()
        expect(page.locator("#server")).to_contain_text("0 running")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
