"""The verifier or a drafter as a process, with a slow bundled model: ``slow_actor.py ROLE ADDRESS MILLISECONDS``.

A verifier's every round takes so much longer, a drafter's every token of a text that it reads.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from actors.drafter import start as drafter
from actors.engines import build
from actors.settings import DrafterSettings, VerifierSettings
from actors.verifier import start as verifier

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"


def main(role: str, address: str, milliseconds: str) -> int:
    extra_s = float(milliseconds) / 1000
    if role == "verifier":
        build_target = build.build_target

        def slow_target(*arguments):
            model, codec = build_target(*arguments)
            verify = model.verify
            model.verify = lambda windows: time.sleep(extra_s) or verify(windows)
            return model, codec

        build.build_target = slow_target
        return verifier.run_verifier(VerifierSettings(bind=address, target=str(PAIR / "target"), threads=1))

    def slow_draft(settings):
        model = drafter.load_draft(settings)
        prefill = model.prefill

        def slow_prefill(handle, limit):
            time.sleep(extra_s * max(0, min(limit, model.missing(handle))))
            prefill(handle, limit)

        model.prefill = slow_prefill
        return model

    return drafter.run_drafter(DrafterSettings(connect=address, draft=str(PAIR / "draft"), actor_id="slow"), slow_draft)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
