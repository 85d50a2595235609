"""The house: protocols <- actors <- duoactor, torch only in engines and training, Ray only for those who ask."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

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
PACKAGES = {"protocols": set(), "actors": {"protocols"}, "duoactor": {"protocols", "actors"}}


def imported(path: Path) -> set[str]:
    """Names of the modules in every import statement of the file, also of those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return names


def complaints(path: Path) -> Iterator[str]:
    """What the file imports and may not."""
    place, names = path.relative_to(ROOT), imported(path)
    tops = {name.partition(".")[0] for name in names}
    yield from tops & PACKAGES.keys() - {place.parts[0]} - PACKAGES[place.parts[0]]
    if place.parts[:2] not in {("actors", "engines"), ("actors", "training")}:
        yield from tops & TORCH
    if place not in WITH_RAY:
        yield from tops & {"ray"}
    if place.parts[0] != "actors" or place.parts[1] == "replay":  # it runs the actors
        return
    own = place.parts[1] if len(place.parts) > 2 else ""
    if own == "tree":
        yield from tops & {"protocols"}
    allowed = {own} | ARROWS.get(own, set()) | (MEET.get(own, set()) if place.name == "start.py" else set())
    for name in names:
        package, _, rest = name.partition(".")
        folder = rest.partition(".")[0]
        if package == "actors" and (folder if (ROOT / "actors" / folder).is_dir() else "") not in allowed:
            yield name


def test_nothing_imports_upwards_and_few_import_torch_or_ray():
    assert {str(path.relative_to(ROOT)): found for path in FILES if (found := [*complaints(path)])} == {}


def circle_from(name: str, imports: dict[str, set[str]], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The first circle of files that import one another, from this file on; empty: there is none."""
    if name in before:
        return (*before[before.index(name) :], name)
    found = (circle_from(one, imports, (*before, name)) for one in sorted(imports.pop(name, ())))
    return next(filter(None, found), ())


ENGINES = [path for path in FILES if path.is_relative_to(ROOT / "actors/engines")]


def test_no_files_of_engines_import_one_another_in_a_circle():
    """For types alone neither."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ENGINES}
    imports = {name: imported(path) & files.keys() for name, path in files.items()}
    assert [circle for name in files if (circle := circle_from(name, imports))] == []


def loaded(modules: Iterable[str]) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_what_people_import_and_type_loads_no_torch():
    actors = [f"actors.{actor}.loop" for actor in ("verifier", "drafter", "controller", "learner")]
    files = "actors.engines.weights.gguf_models"  # `up` looks for a layer for more tokens in the target's file
    assert not loaded(["duoactor", "duoactor.cli", "duoactor.serve.start", files, *actors]) & TORCH
    assert not loaded(["duoactor"]) & {"protocols", "actors", "zmq"}
    assert not loaded(["duoactor.client.sync_client"]) & {"numpy", "rich", "click"}


def test_files_can_be_read_in_one_sitting():
    long = {str(p.relative_to(ROOT)) for p in FILES if len(p.read_text().splitlines()) > 450}
    assert long <= {"protocols/messages.py"}  # a list of definitions
