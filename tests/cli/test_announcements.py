"""What a command says while it loads models in its own process."""

from __future__ import annotations

import logging

from duoactor.cli.announcements import announced


def test_what_engines_log_is_progress_and_a_warning_is_a_line(capsys):
    log, shown = logging.getLogger("duoactor.engines"), list[str]()
    with announced(shown.append):
        log.info("compiling the layers")
        log.warning("there is no compiler")
    log.info("compiling again")
    assert shown == ["compiling the layers …", ""]
    assert capsys.readouterr().err == "there is no compiler\n"
