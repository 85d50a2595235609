"""What README and docs tell people to type, and the examples, are run (how: tests/documentation.py)."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from duoactor import config
from tests.documentation import (
    ROOT,
    RUN,
    SHARED_START,
    SHOWN,
    Block,
    blocks,
    check_command,
    check_options,
    example_block,
    pages,
    run,
    start_of,
)

NOT_RUN = 18  # blocks that need what no test machine has; each says what


@pytest.fixture
def directory() -> Iterator[Path]:
    """Shorter than ``tmp_path``: a socket's path has at most some 100 characters."""
    with tempfile.TemporaryDirectory(prefix="doc-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def ports() -> dict[str, int]:
    """Free ports in place of those that the pages name."""
    free = {}
    for name in ("8000", "7601"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free[name] = probe.getsockname()[1]
    return free


def runs(block: Block) -> bool:
    return block.language in RUN and not block.not_run


EVERY = [block for page in pages() for block in blocks(page)]
STARTS: dict[str, list[Block]] = defaultdict(list)  # examples
TOGETHER: dict[str, list[Block]] = defaultdict(list)  # by page, or pages and examples that need the same actors
LAST: list[Block] = []  # they begin with the shared actors, and end with keys and variables
for page in pages():
    if run_here := [*filter(runs, blocks(page))]:
        start = start_of(run_here)
        keys = any("duoactor keys" in block.code for block in run_here)
        (LAST if keys and start else TOGETHER[page.name if keys else start or SHARED_START]).extend(run_here)
for example in sorted((ROOT / "examples").glob("*.py")):
    start, block = example_block(example)
    if block.not_run:
        EVERY.append(block)
    else:
        STARTS[start].append(block)
        TOGETHER[start] += [Block("what starts the actors", "bash", start + "\n"), block]
TOGETHER[SHARED_START] += LAST


def test_every_block_of_code_says_its_language():
    """One without would not be run; what is only shown is called text."""
    assert [block.where for block in EVERY if block.language not in (*RUN, *SHOWN)] == []


def test_every_example_says_how_it_is_run():
    """Its docstring has the lines "Start the actors first:  duoactor up" and "Then:  python examples/NAME"."""
    assert [block.where for block in STARTS.get("", [])] == []


def test_few_blocks_are_not_run_and_those_name_commands_and_options_that_there_are():
    left_out = [block for block in EVERY if block.not_run]
    assert len(left_out) <= NOT_RUN
    for block in left_out:
        check_options(block)


def test_the_containers_run_commands_that_there_are():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    ours = [service["command"] for service in services.values() if service["image"] == "duoactor"]
    stated = re.search(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(ours) == 4 and stated
    for command in (*ours, json.loads(stated[1])):
        check_command([re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in command])


@pytest.mark.parametrize("file", ["Dockerfile", "examples/kubernetes/ray.Dockerfile"])
def test_an_image_has_all_that_answers_need_out_of_files_that_there_are(file):
    """Without the extra "structured" a JSON schema or a required call is refused; "otel" makes traces."""
    recipe = (ROOT / file).read_text()
    installed = re.search(r"\[([a-z,]+)\]'$", recipe, re.MULTILINE)
    assert installed and "all" in installed[1].split(",")
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", recipe, re.MULTILINE) for name in line.split()]
    copied = [name for name in copied if not name.startswith("--")]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied and all((ROOT / name).exists() for name in {*copied, *sent})
    assert {*copied} <= {*sent, "."}
    assert {"protocols", "actors", "duoactor"} <= sent


def test_the_pods_run_commands_that_there_are_with_files_that_are_mounted():
    """Schemas were checked by hand: kubernetes-validate --strict, and KubeRay's own."""
    place = ROOT / "examples" / "kubernetes"
    made = yaml.safe_load((place / "kustomization.yaml").read_text())
    keys = {one["name"]: {Path(file).name for file in one["files"]} for one in made["secretGenerator"]}
    config.read(place / "duo.toml")
    containers = 0
    for manifest in yaml.safe_load_all("---\n".join((place / name).read_text() for name in made["resources"])):
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        secrets = {one["name"]: keys[one["secret"]["secretName"]] for one in pod["volumes"] if "secret" in one}
        for container in pod["containers"]:
            containers += 1
            check_command(container["args"])
            (own,) = (secrets[one["name"]] for one in container["volumeMounts"] if one["name"] in secrets)
            used = {Path(word).name for word in container["args"] if "=/keys/" in word}
            assert used <= own and len({file for file in own if file.endswith(".key")}) == 1
    assert containers == 4
    check_command(yaml.safe_load((place / "ray.yaml").read_text())["spec"]["entrypoint"].split()[1:])


def test_code_that_a_page_prints_stands_so_in_the_code():
    """Behind a mark <!-- as it stands: FILE Class.method --> comes that method, as Python's parser reads it."""
    printed = [
        (page.name, found)
        for page in pages()
        for found in re.finditer(
            r"<!-- as it stands: (\S+) (\w+)\.(\w+) -->\n```python\n(.*?)```", page.read_text(), re.S
        )
    ]
    assert ("how-it-works.md", "loop.py") in [(page, Path(found[1]).name) for page, found in printed]
    for page, found in printed:
        source = (ROOT / found[1]).read_text()
        owner = next(
            node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == found[2]
        )
        method = next(node for node in owner.body if getattr(node, "name", "") == found[3])
        stands = textwrap.dedent("\n".join(source.splitlines()[method.lineno - 1 : method.end_lineno])) + "\n"
        assert found[4] == stands, f"paste this into {page}, behind its mark:\n{stands}"


def test_the_readme_is_short_and_has_only_figures_of_the_benchmarks():
    readme, measured = (ROOT / "README.md").read_text(), (ROOT / "docs" / "benchmarks.md").read_text()
    assert len(readme.split()) <= 900
    assert "bit for bit" in readme[:1200]
    figures = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?=×|\*\*|\s*tokens/s| \|)", readme.partition("## Install")[0])
    assert len(figures) >= 9
    assert [figure for figure in figures if figure not in measured] == []


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def test_links_between_pages_lead_somewhere():
    """Also those of pages that are not on the site."""
    dead = []
    every = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    for page in every:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
            path, _, part = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.M) if part and there.suffix == ".md" else []
            if not there.exists() or (part and anchor(part) not in map(anchor, headings)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []


def test_every_duo_toml_that_is_shown_is_valid(tmp_path: Path):
    for number, block in enumerate(block for block in EVERY if block.language == "toml"):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.code)
        config.read(file)


def test_the_docs_build_as_a_site_without_a_warning(tmp_path: Path):
    """A link to nothing, a page left out, an unknown name in the API reference are warnings."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "no verifier answers at …" in (tmp_path / "errors" / "index.html").read_text()
    assert "maximum number of tokens to generate" in (tmp_path / "api" / "index.html").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("which", list(filter(None, TOGETHER)))
def test_the_commands_of_pages_and_the_examples_run(which: str, directory: Path, ports: dict[str, int]):
    run(TOGETHER[which], directory, ports)


@pytest.mark.processes
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.sh")), ids=lambda script: script.name)
def test_the_scripts_among_the_examples_run(script: Path, directory: Path, ports: dict[str, int]):
    run([Block(script.name, "bash", f"bash examples/{script.name}\n")], directory, ports)
