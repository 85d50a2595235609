"""Make the files of tests/data/writers anew with the tools that are installed today, and say what has changed.

``python remake.py PYTHON with_TOOL.py [--keep]``: PYTHON is that of a virtual environment with the tool. Without
``--keep`` the files in the repository stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
WRITTEN = HERE.parents[1] / "tests/data/writers"


def facts(place: Path) -> dict[str, str]:
    """What a checkpoint says: its tool, its config, and each tensor's bytes."""
    found = {}
    for file in sorted(place.rglob("*.json")):
        for key, value in json.loads(file.read_text()).items():
            found[f"{file.name}: {key}"] = json.dumps(value, sort_keys=True)
    for file in sorted(place.rglob("*.safetensors")):
        raw = file.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = (start + offset for offset in entry["data_offsets"])
                digest = hashlib.sha256(raw[begin:end]).hexdigest()[:12]
                found[f"{file.name}: {name}"] = f"{entry['dtype']} {entry['shape']} {digest}"
    return found


def main(python: str, script: str, *options: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([python, HERE / script, made], check=True)
        for place in sorted(Path(made).iterdir()):
            kept = WRITTEN / place.name
            old, new = facts(kept) if kept.is_dir() else {}, facts(place)
            changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            print(place.name, "as before" if not changed else f"{len(changed)} changed")
            for key in changed:
                print(f"  {key}: {old.get(key, 'nothing')} -> {new.get(key, 'nothing')}")
            if changed and "--keep" in options:
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(place, kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
