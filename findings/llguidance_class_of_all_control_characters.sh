#!/usr/bin/env bash
# llguidance 1.9.1: in a JSON schema's "pattern", a class that holds all control characters allows a quote and a
# backslash too, as \" and \\. So ^[^"]*$ lets a value with a quote through. Without U+0000 in the class it does not.
#
# Output seen:
#   ^[^"]*$ allows the value a"b: True
#   ^[^"\x00]*$ allows the value a"b: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet llguidance==1.9.1
found=$("$folder/venv/bin/python" - <<'PYTHON'
import json

from llguidance import LLMatcher, LLTokenizer

for pattern in (r'^[^"]*$', r'^[^"\x00]*$'):
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(schema))
    assert not matcher.is_error(), matcher.get_error()
    text = list(json.dumps('a"b').encode())
    allowed = matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting()
    print(f'{pattern} allows the value a"b: {allowed}')
PYTHON
)
echo "$found"
[ "$found" = '^[^"]*$ allows the value a"b: True
^[^"\x00]*$ allows the value a"b: False' ]
