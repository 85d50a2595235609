"""A ``duo.toml`` of what the doctor found."""

from __future__ import annotations

import json

from actors.settings import DrafterSettings, VerifierSettings, retrieves
from duoactor.doctor.forecast import PAYS
from duoactor.doctor.report import Report

RETRIEVING = "sam"  # needs no model, fits every tokenizer and costs microseconds


def toml(report: Report, verifier: VerifierSettings, drafter: DrafterSettings) -> str:
    """Both models where the draft pays, else a drafter that retrieves."""
    pays = bool(report.forecasts) and report.forecasts[0].speedup >= PAYS
    draft = drafter.draft if pays or retrieves(drafter.draft) else RETRIEVING
    text = [f"# Written by `duoactor doctor --fix`. {report.verdict}", "", "[verifier]"]
    text.append(f"target = {json.dumps(verifier.target)}")
    if report.target is not None:
        text += [f"device = {json.dumps(report.target.device)}", f"dtype = {json.dumps(report.target.dtype)}"]
    text += ["", "[drafter]", f"draft = {json.dumps(draft)}"]
    if draft == drafter.draft and report.draft is not None:
        text += [f"device = {json.dumps(report.draft.device)}", f"dtype = {json.dumps(report.draft.dtype)}"]
    return "\n".join(text) + "\n"
