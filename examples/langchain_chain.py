"""LangChain against the gateway: a prompt template, the model and a parser, streamed.

Start the actors first:  duoactor up
Then:                    pip install langchain-openai
Then:                    python examples/langchain_chain.py
"""

import openai
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

URL = "http://127.0.0.1:8000/v1"
try:
    name = openai.OpenAI(base_url=URL, api_key="none").models.list().data[0].id
except openai.APIConnectionError:
    raise SystemExit("no gateway there: start `duoactor up`") from None

prompt = ChatPromptTemplate.from_messages([("system", "Answer in one sentence."), ("user", "{question}")])
model = ChatOpenAI(base_url=URL, api_key="none", model=name, max_tokens=60, extra_body={"method": "auto"})
for piece in (prompt | model | StrOutputParser()).stream({"question": "Why is the sky blue?"}):
    print(piece, end="", flush=True)
print()
