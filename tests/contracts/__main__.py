"""Prints what the contracts' deployments reach now; ``--record COMMIT`` makes that the figures they are held to.

``python -m tests.contracts [--record COMMIT] [DEPLOYMENT ...]`` from the root of the repository.
"""

from __future__ import annotations

import argparse
import json

from tests.contracts.deployments import DEPLOYMENTS, rates
from tests.contracts.figures import FILE, TEMPERATURES, recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="DEPLOYMENT", default=list(DEPLOYMENTS))
    parser.add_argument("--record", metavar="COMMIT", help="write the figures, as those of this commit")
    options = parser.parse_args()
    known = recorded() if FILE.exists() else {}
    figures: dict[str, dict[str, float]] = {}
    for name in options.names:
        for temperature in TEMPERATURES:
            found = rates(DEPLOYMENTS[name], temperature)
            figures.setdefault(name, {})[str(temperature)] = round(found["auto"], 1)
            before = known.get(name, {}).get(str(temperature))
            ratio = f", {found['auto'] / before:.3f} of the recorded {before}" if before else ""
            print(
                f"{name} at temperature {temperature}: auto {found['auto']:.1f} tokens/s, "
                f"{found['auto'] / found['vanilla']:.3f} of vanilla{ratio}",
                flush=True,
            )
    if options.record:
        how = f"tokens per virtual second at commit {options.record}: python -m tests.contracts --record"
        FILE.write_text(json.dumps({"made": how, "auto": {**known, **figures}}, indent=2) + "\n")


if __name__ == "__main__":
    main()
