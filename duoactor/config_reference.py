"""All options written out: a ``duo.toml`` to begin with, and the page that describes them.

``python -m duoactor.config_reference > docs/configuration.md`` writes the page anew.
"""

from __future__ import annotations

from actors.settings import Settings
from duoactor.config import SECTIONS, as_toml, options

_INTRODUCTION = """\
# Configuration

Every option of an actor is a flag of its command (`duoactor verifier --help`) and a key of `duo.toml`
(`--config duo.toml`); a flag wins over the file. `duoactor up` reads all sections: plain flags are the
verifier's, flags that begin with `--draft` the drafter's.

```toml
[verifier]
target = "meta-llama/Llama-3.1-8B-Instruct"
device = "cuda"
method = "duodecoding"

[drafter]            # or several drafters, each under [[drafter]]
draft = "meta-llama/Llama-3.2-1B-Instruct"
threads = 4

[controller]

[gateway]            # duoactor serve
http = "0.0.0.0:8000"
api_key_file = "keys.txt"
```

An unknown key, or a value of the wrong type, stops the start with one sentence that names it. Relative paths are
relative to the directory the command runs in. An empty address means this user's default address.

Where `connect`, `key` and `server_key` are not given as flags, `DUOACTOR_CONNECT`, `DUOACTOR_KEY` and
`DUOACTOR_SERVER_KEY` stand for them, before the file: with every command that connects to a verifier. A `Client()`
without an address reads the same three. `duoactor up` and `duoactor verifier` do not: their address is `bind`.

This page is generated from the code: `python -m duoactor.config_reference > docs/configuration.md`.
"""


def template() -> str:
    """A ``duo.toml`` with every option, its meaning and its default, all commented out: it changes nothing."""
    parts = ["# duoactor's options, each with its default. Take away the # before what you change.\n"]
    for name, struct in SECTIONS.items():
        parts.append(f"\n[{name}]\n# {_about(struct)}\n")
        if name == "drafter":
            parts.append("# For several drafters write this section several times, each under [[drafter]].\n")
        for option in options(struct):
            kind = "" if option.kind in ("text", "switch") else f" ({option.type_text})"
            parts.append(f"\n# {option.description}{kind}\n# {option.name} = {as_toml(option.default)}\n")
    return "".join(parts)


def reference() -> str:
    """The text of ``docs/configuration.md``."""
    parts = [_INTRODUCTION]
    for name, struct in SECTIONS.items():
        parts.append(f"\n## [{name}]\n\n{_about(struct)}\n")
        parts.append("\n| key | flag | default | type | meaning |\n|---|---|---|---|---|\n")
        for option in options(struct):
            default = "`{}`".format(as_toml(option.default).strip('"')) if option.default not in ("", ()) else "empty"
            cells = (f"`{option.name}`", f"`{option.flag}`", default, option.type_text, option.description)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _about(struct: type[Settings]) -> str:
    """A section's docstring in one line."""
    return " ".join((struct.__doc__ or "").split())


if __name__ == "__main__":
    print(reference(), end="")
