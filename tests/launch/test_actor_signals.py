"""An actor ends when it is asked to, also while it loads a model."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import asyncio, time
from actors.process import run_actor
from actors.tasks import until_one_ends

async def serve():
    await asyncio.sleep(0)  # others begin to wait for the signal
    print("serving", flush=True)
    await asyncio.sleep(3600)

async def main(stop):
    try:
        await load()
        await until_one_ends(serve(), stop.wait())
    finally:
        print("in order", flush=True)
"""
IN_THE_LOOP = """
async def load():
    print("loading", flush=True)
    while True:
        time.sleep(0.01)
"""
IN_A_THREAD = """
from actors.verifier.compute import ThreadCompute

async def load():
    print("loading", flush=True)
    compute = ThreadCompute()
    try:
        await compute.start(lambda: time.sleep(3600))
    finally:
        compute.close()
"""
IN_C = """
import ctypes

@ctypes.CFUNCTYPE(None)
def compile():  # as a compiler's callback: what it raises is printed and lost
    sum(range(100_000))

async def load():
    print("loading", flush=True)
    while True:
        compile()
"""
NOTHING = """
async def load():
    print("loading", flush=True)
"""


def start(load: str) -> subprocess.Popen[str]:
    program = textwrap.dedent(HEAD) + load + "\nraise SystemExit(run_actor(main))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "loading\n"
    return process


@pytest.mark.parametrize("load", [IN_THE_LOOP, IN_A_THREAD, IN_C], ids=["in the loop", "in a thread", "in a compiler"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_loads_a_model_ends_at_once(load: str, number: signal.Signals, code: int):
    process = start(load)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_serves_ends_in_order(number: signal.Signals):
    process = start(NOTHING)
    assert process.stdout and process.stdout.readline() == "serving\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "in order\n", "")
