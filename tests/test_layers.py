"""The house: protocols <- actors <- duoactor, torch only in engines and training, Ray only for those who ask."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [p for package in ("protocols", "actors", "duoactor") for p in sorted((ROOT / package).rglob("*.py"))]
WITH_RAY = {Path("duoactor/launch/host.py"), *(p.relative_to(ROOT) for p in (ROOT / "duoactor/ray").glob("*.py"))}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}


# Folders of actors that each folder may import; "" are the files of actors itself. Engines and actors meet in start.py.
ARROWS = {
    "": {"tree"},
    "tree": set(),
    "engines": {"", "tree"},
    "verifier": {"", "tree"},
    "drafter": {"", "tree"},
    "controller": {"", "tree"},
    "learner": {"", "tree"},
    "training": {"", "tree", "engines"},
}
MEET = {"verifier": {"engines"}, "drafter": {"engines"}, "learner": {"engines", "training"}}


def folders(path: Path) -> set[str]:
    """Folders of actors that a file imports from; its own is not among them."""
    place, found = path.relative_to(ROOT / "actors"), set()
    own = place.parts[0] if len(place.parts) > 1 else ""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            package, _, rest = name.partition(".")
            first = rest.split(".")[0]
            if package == "actors":
                found.add(first if (ROOT / "actors" / first).is_dir() else "")
    return found - {own}


def test_folders_of_actors_import_downwards_only():
    wrong = set()
    for path in sorted((ROOT / "actors").rglob("*.py")):
        place = path.relative_to(ROOT / "actors")
        own = place.parts[0] if len(place.parts) > 1 else ""
        allowed = ARROWS.get(own, set()) | (MEET.get(own, set()) if place.name == "start.py" else set())
        if own == "replay":  # it runs the actors
            continue
        wrong |= {(str(place), folder) for folder in folders(path) - allowed}
    assert not wrong


def imported(path: Path) -> set[str]:
    """Top-level names of every import statement in the file, also of those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def modules(path: Path) -> set[str]:
    """Full names of the modules that the file imports from."""
    return {node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}


def test_the_tree_imports_nothing_of_the_house():
    for path in (ROOT / "actors/tree").glob("*.py"):
        assert not imported(path) & {"protocols", "duoactor"}, path
        assert not folders(path), path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_upwards_and_few_import_torch_or_ray(path):
    names = imported(path)
    place = path.relative_to(ROOT)
    if place.parts[0] == "protocols":
        assert not names & {"actors", "duoactor"}
    if place.parts[0] == "actors":
        assert "duoactor" not in names
    if place.parts[:2] == ("actors", "tree"):
        assert "protocols" not in names
        assert not {name for name in modules(path) if name.startswith("actors.") and name.split(".")[1] != "tree"}
    if place.parts[:2] not in {("actors", "engines"), ("actors", "training")}:
        assert not names & TORCH
    if place not in WITH_RAY:
        assert "ray" not in names


@pytest.mark.parametrize(
    "module",
    [
        "duoactor",
        "duoactor.cli",
        "duoactor.serve.start",
        "actors.verifier.loop",
        "actors.drafter.loop",
        "actors.controller.loop",
        "actors.learner.loop",
    ],
)
def test_what_people_import_and_type_loads_no_torch(module):
    code = f"import sys, {module}; print(sorted({TORCH!r} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_importing_the_client_loads_neither_numpy_nor_rich():
    code = "import sys; from duoactor import Client; print(sorted({'numpy', 'rich', 'click'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_files_can_be_read_in_one_sitting():
    long = {str(p.relative_to(ROOT)) for p in FILES if len(p.read_text().splitlines()) > 450}
    assert long <= {"protocols/messages.py"}  # a list of definitions
