"""Function calling with OpenAI's client; another gateway's address is the argument.

With a model that was trained to call functions, leave `tool_choice` out and let it decide.

Needs:                   pip install openai 'duoactor[serve,structured]'
Start the actors first:  duoactor up
Then:                    python examples/openai_tools.py
"""

import json
import sys

import openai


def get_weather(city: str, unit: str = "celsius") -> str:
    return json.dumps({"city": city, "temperature": 21 if unit == "celsius" else 70, "sky": "clear"})


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Tokyo", "Lagos"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}

client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
try:
    model = client.models.list().data[0].id
except openai.APIConnectionError:
    raise SystemExit("no gateway there: start `duoactor up`") from None
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

asked = client.chat.completions.create(
    model=model, messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=100
)
message = asked.choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls or []:
    print(f"{call.function.name}({call.function.arguments})")
    result = get_weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL], max_tokens=100, stream=True)
for chunk in answer:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
