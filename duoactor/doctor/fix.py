"""A ``duo.toml`` of what the doctor found."""

from __future__ import annotations

import json
from pathlib import Path

from actors.settings import DrafterSettings, VerifierSettings, retrieves
from duoactor.doctor.forecast import PAYS
from duoactor.doctor.report import Report
from protocols.errors import ConfigError

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


def write(file: str, text: str) -> None:
    """ConfigError where it is there already, or cannot be written."""
    try:
        with Path(file).open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} exists already: name another file with --fix, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): name another file") from None
