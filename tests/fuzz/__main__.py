"""Coverage-guided fuzzing of one decoder with atheris: ``python -m tests.fuzz ToVerifier -runs=1000000`` (or ``list``).

Needs the extra ``duoactor[fuzz]``. Options behind the name are libFuzzer's, such as ``-max_total_time=60``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["actors", "duoactor", "protocols"]):
        from tests.fuzz.decoders import targets

    with tempfile.TemporaryDirectory() as directory:
        found = targets(Path(directory))
        if len(sys.argv) < 2 or sys.argv[1] not in found:
            sys.exit(f"{__doc__}\nDecoders: {', '.join(found)}.")
        target = found[sys.argv[1]]
        corpus = Path(directory) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(target.seeds):
            (corpus / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], target.decode)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
