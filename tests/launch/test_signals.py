"""Signals reach whoever runs actors, also from a script and from a terminal that is closed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from duoactor.launch.signals import Terminated, run_until_signal

async def main():
    print("on", flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        print("in order", flush=True)

try:
    run_until_signal(main())
except (KeyboardInterrupt, Terminated) as error:
    print(type(error).__name__, flush=True)
"""


def start(*ignored: signal.Signals) -> subprocess.Popen[str]:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have been started by nohup
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, preexec_fn=ignore, stdin=subprocess.DEVNULL
    )
    assert process.stdout and process.stdout.readline() == "on\n"
    return process


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated"), (signal.SIGHUP, "Terminated")],
)
def test_a_signal_ends_it_in_order(number: signal.Signals, ending: str):
    process = start()
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"in order\n{ending}\n"


def test_what_a_script_started_in_the_background_can_be_interrupted():
    process = start(signal.SIGINT)  # as a shell without job control leaves it for `duoactor up &`
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "in order\nKeyboardInterrupt\n"


def test_nohup_is_respected():
    process = start(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "in order\nTerminated\n"
