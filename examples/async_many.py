"""Many requests over one connection; each round of the target serves all of them at once.

Start the actors first:  duoactor up
Then:                    python examples/async_many.py
"""

import asyncio

from duoactor import AsyncClient, DuoactorError

QUESTIONS = [f"What is {a} plus {b}?" for a, b in ((2, 3), (10, 7), (41, 1), (8, 8))]


async def main() -> None:
    async with AsyncClient() as client:
        answers = await asyncio.gather(
            *(client.chat([{"role": "user", "content": q}], max_tokens=40) for q in QUESTIONS)
        )
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question}\n  {answer.text.strip()}\n")


try:
    asyncio.run(main())
except DuoactorError as error:
    raise SystemExit(str(error)) from None
