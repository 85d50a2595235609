"""An answer that is JSON of a given schema, a text of a given form, or whatever a grammar says.

Needs:                   pip install 'duoactor[structured]'
Start the actors first:  duoactor up
Then:                    python examples/structured_output.py
"""

import json

from duoactor import Client, DuoactorError, StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["music", "books", "sports"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
GRAMMAR = """
start: "SELECT " NAME " FROM " NAME (" WHERE " NAME " = " NUMBER)? ";"
NAME: /[a-z]{2,10}/
NUMBER: /[0-9]{1,3}/
"""

try:
    with Client() as client:
        schema = StructuredOutputs(json_schema=json.dumps(SCHEMA))
        person = client.generate("Someone, as JSON: ", structured_outputs=schema)
        print(json.loads(person.text))
        stats = person.stats
        print(f"{stats.completion_tokens} tokens in {stats.rounds} rounds; {stats.forced_tokens} of them were forced")

        form = r"(Monday|Tuesday|Friday), [0-9]{1,2}:[0-9]{2} (am|pm)"
        print(client.generate("When do we meet?", structured_outputs=StructuredOutputs(regex=form)).text)
        print(client.generate("All users in SQL: ", structured_outputs=StructuredOutputs(grammar=GRAMMAR)).text)
except DuoactorError as error:
    raise SystemExit(str(error)) from None
