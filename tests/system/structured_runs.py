"""500 answers over 20 schemas, checked by ``jsonschema``: run it by hand, ``python -m tests.system.structured_runs``.

Starts ``duoactor up`` with the bundled pair. Every schema is asked for with ``auto``, half of its answers greedy, half
at temperature 1 with a seed each; some of them again with ``vanilla``, whose text must be the same. Before that both
methods answer in turns, one stream alone, for tokens per second and per round. Prints one JSON document; the exit code
is 1 if an answer does not validate, is cut off, or differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path

import jsonschema

from duoactor import AsyncClient, Completion, StructuredOutputs
from tests.world.processes import Up

MAX_TOKENS = 500
AT_ONCE = 4
TIMED = 2  # answers of each method to each schema that are timed


def record(**fields: object) -> dict[str, object]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def text(most: int = 24) -> dict[str, object]:
    return {"type": "string", "maxLength": most}


INTEGER = {"type": "integer", "minimum": 0, "maximum": 9999}
SCHEMAS: dict[str, dict[str, object]] = {
    "person": record(name=text(), age={"type": "integer", "minimum": 0, "maximum": 150}),
    "point": record(x={"type": "number", "minimum": -1, "maximum": 1}, y={"type": "number", "minimum": 0}),
    "colour": {"enum": ["red", "green", "blue", {"rgb": [0, 0, 0]}, None, 7]},
    "flags": record(a={"type": "boolean"}, b={"type": "boolean"}, c={"type": "null"}),
    "list": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 6},
    "words": {"type": "array", "items": text(8), "minItems": 1, "maxItems": 4},
    "pair": {"type": "array", "prefixItems": [text(6), INTEGER], "items": False, "minItems": 2},
    "nested": record(user=record(id=INTEGER, address=record(street=text(12), zip=text(6))), ok={"type": "boolean"}),
    "optional": {
        "type": "object",
        "properties": {"title": text(10), "year": INTEGER, "note": text(10)},
        "required": ["title"],
        "additionalProperties": False,
    },
    "date": record(day={"type": "string", "format": "date"}, time={"type": "string", "format": "time"}),
    "uuid": record(id={"type": "string", "format": "uuid"}),
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    "either": record(value={"anyOf": [INTEGER, text(8), {"type": "null"}]}),
    "kinds": {
        "oneOf": [record(kind={"const": "circle"}, radius=INTEGER), record(kind={"const": "square"}, side=INTEGER)]
    },
    "defined": {
        "$defs": {"money": record(amount=INTEGER, currency={"enum": ["EUR", "USD"]})},
        **record(price={"$ref": "#/$defs/money"}, shipping={"$ref": "#/$defs/money"}),
    },
    "tree": {
        "$defs": {
            "leaf": record(name=text(5)),
            "node": record(name=text(5), children={"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2}),
        },
        "$ref": "#/$defs/node",
    },
    "call": record(name={"const": "get_weather"}, arguments=record(city=text(16), unit={"enum": ["C", "F"]})),
    "review": record(
        sentiment={"enum": ["positive", "negative", "neutral"]}, score={"type": "integer", "minimum": 1, "maximum": 5},
        reasons={"type": "array", "items": text(12), "maxItems": 2},
    ),
    "table": {"type": "array", "items": record(id=INTEGER, name=text(6)), "minItems": 1, "maxItems": 3},
    "multiple": record(even={"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 100}),
}  # fmt: skip


async def ask(client: AsyncClient, name: str, number: int, method: str) -> Completion:
    return await client.generate(
        f"An example of a {name} as JSON, number {number}: ",
        structured_outputs=StructuredOutputs(json_schema=json.dumps(SCHEMAS[name])),
        temperature=float(number % 2),
        seed=number,
        max_tokens=MAX_TOKENS,
        method=method,
    )


def wrong(name: str, answer: Completion) -> str | None:
    """What is wrong with an answer, if anything is."""
    if answer.finish_reason != "stop":
        return f"{name}: cut off: {answer.text[:80]}"
    try:
        jsonschema.validate(json.loads(answer.text), SCHEMAS[name])
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{name}: {str(error).splitlines()[0]}: {answer.text[:80]}"
    return None


async def validated(client: AsyncClient, runs: int) -> dict[str, object]:
    gate = asyncio.Semaphore(AT_ONCE)
    jobs = [(name, number) for number in range(runs // len(SCHEMAS)) for name in SCHEMAS]

    async def one(name: str, number: int) -> tuple[Completion, str | None, bool]:
        async with gate:
            answer = await ask(client, name, number, "auto")
            compared = number < 2
            same = not compared or (await ask(client, name, number, "vanilla")).token_ids == answer.token_ids
            return answer, wrong(name, answer), same

    results = await asyncio.gather(*(one(*job) for job in jobs))
    stats = [answer.stats for answer, _, _ in results]
    return {
        "runs": len(results),
        "valid": sum(problem is None for _, problem, _ in results),
        "invalid": [problem for _, problem, _ in results if problem is not None][:10],
        "compared with vanilla": 2 * len(SCHEMAS),
        "differ": [name for (name, _), (_, _, same) in zip(jobs, results, strict=True) if not same],
        "distinct": len({answer.text for answer, _, _ in results}),
        "tokens": sum(one.completion_tokens for one in stats),
        "forced tokens": sum(one.forced_tokens for one in stats),
        "tokens per round": round(
            sum(one.completion_tokens for one in stats) / sum(one.rounds + 1 for one in stats), 2
        ),
    }


async def timed(client: AsyncClient) -> dict[str, object]:
    """In turns, so that both methods meet the same machine."""
    rates: dict[tuple[str, int], list[float]] = {}
    rounds: dict[tuple[str, int], list[float]] = {}
    for turn in range(TIMED):
        for name in SCHEMAS:
            for warm in (0, 1):
                for method in ("vanilla", "auto"):
                    stats = (await ask(client, name, 100 + 2 * turn + warm, method)).stats
                    if stats.completion_tokens > 8:
                        rates.setdefault((method, warm), []).append(
                            1000 * (stats.completion_tokens - 1) / stats.decode_ms
                        )
                        rounds.setdefault((method, warm), []).append((stats.completion_tokens - 1) / stats.rounds)
    return {
        f"{method}, temperature {temperature}": {
            "median tokens/s": round(statistics.median(rates[method, temperature]), 1),
            "median tokens per round": round(statistics.median(rounds[method, temperature]), 2),
        }
        for method, temperature in rates
    }


async def measure(address: str, runs: int) -> dict[str, object]:
    async with AsyncClient(address) as client:
        await ask(client, "person", 0, "auto")  # the vocabulary's index is made
        speed = await timed(client)
        return {**await validated(client, runs), "speed": speed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        up = Up(Path(directory))
        try:
            found = asyncio.run(measure(up.address, options.runs))
        finally:
            up.stop()
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return int(bool(found["invalid"] or found["differ"]))


if __name__ == "__main__":
    sys.exit(main())
