"""The HTTP gateway: a client of the verifier that speaks OpenAI's API. Needs the extra ``duoactor[serve]``."""
