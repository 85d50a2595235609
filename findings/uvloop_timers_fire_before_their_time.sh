#!/usr/bin/env bash
# uvloop 0.23.0: loop.time() counts whole milliseconds and delays are rounded to the nearest one, so a timer may fire
# before its time. A sleep of 0.4 ms returns at once, and one of 10.4 ms within less. asyncio's own loop never wakes early.
# Whoever sleeps "until it is due" and does not look at the clock again acts too soon, and a loop of short sleeps spins.
#
# Output seen:
#   asyncio: loop.time() in whole milliseconds: False; early: 0.4 ms never, 10.4 ms never
#   uvloop: loop.time() in whole milliseconds: True; early: 0.4 ms always, 10.4 ms mostly
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet uvloop==0.23.0
found=$("$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import time

import uvloop

TRIES = 40


async def early(delay: float) -> str:
    count = 0
    for _ in range(TRIES):
        begin = time.monotonic()
        await asyncio.sleep(delay)
        count += time.monotonic() - begin < delay
    return "never" if not count else "always" if count == TRIES else "mostly" if count > TRIES / 2 else "seldom"


async def main(name: str) -> None:
    loop = asyncio.get_running_loop()
    whole = True
    for _ in range(20):
        await asyncio.sleep(0.001)
        whole = whole and abs(loop.time() * 1000 - round(loop.time() * 1000)) < 1e-3
    said = ", ".join([f"{delay * 1000:g} ms {await early(delay)}" for delay in (0.0004, 0.0104)])
    print(f"{name}: loop.time() in whole milliseconds: {whole}; early: {said}")


asyncio.run(main("asyncio"))
uvloop.run(main("uvloop"))
PYTHON
)
echo "$found"
[ "$found" = 'asyncio: loop.time() in whole milliseconds: False; early: 0.4 ms never, 10.4 ms never
uvloop: loop.time() in whole milliseconds: True; early: 0.4 ms always, 10.4 ms mostly' ]
