"""docs/api.md can be read as it is: its table of options is that of the code."""

from pathlib import Path

from duoactor.client.options import DEFAULTS, DESCRIPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_option_stands_on_the_page_with_its_default_and_its_meaning():
    page = PAGE.read_text(encoding="utf-8")
    for name, meaning in DESCRIPTIONS.items():
        assert f"| `{name}` | `{DEFAULTS[name]!r}` | {meaning} |" in page
