"""Errors and warnings call a parameter what the API of the request calls it."""

import pytest

from tests.serve.gateway import TURNS, served

CHAT = {"messages": TURNS}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {**CHAT, "max_tokens": 4},
    "/api/chat": CHAT,
    "/api/generate": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}
OLLAMA, LLAMA = ("/api/chat", "/api/generate"), ("/completion",)
OTHERS = ("max_tokens", "repetition_penalty", "response_format", "structured_outputs", "num_speculative_tokens")


def told(answer) -> str:
    said = answer.json()["error"]
    return said if isinstance(said, str) else said["message"]


@pytest.mark.parametrize(
    ("paths", "given", "name"),
    [
        (OLLAMA, {"options": {"num_predict": "x"}}, "num_predict"),
        (OLLAMA, {"options": {"num_predict": 2, "min_tokens": 5}}, "num_predict"),
        (OLLAMA, {"options": {"repeat_penalty": 1000}}, "repeat_penalty"),
        (OLLAMA, {"options": {"repeat_penalty": "x"}}, "repeat_penalty"),
        (OLLAMA, {"options": {"draft_num_predict": 100000}}, "draft_num_predict"),
        (OLLAMA, {"options": {"stop": 5}}, "stop"),
        (OLLAMA, {"options": {"top_p": 5}}, "top_p"),
        (OLLAMA, {"format": "xml"}, "format"),
        (OLLAMA, {"format": {"type": "object", "minProperties": "x"}}, "format"),
        (OLLAMA, {"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
        (("/api/generate",), {"raw": True, "logprobs": True, "top_logprobs": 50}, "top_logprobs"),
        (LLAMA, {"n_predict": "x"}, "n_predict"),
        (LLAMA, {"n_predict": 2, "min_tokens": 5}, "n_predict"),
        (LLAMA, {"repeat_penalty": 1000}, "repeat_penalty"),
        (LLAMA, {"json_schema": {"type": "object", "minProperties": "x"}}, "json_schema"),
        (LLAMA, {"grammar": "root ::= ("}, "grammar"),
        (LLAMA, {"n_cmpl": 64, "prompt": ["a", "b"]}, "n_cmpl"),
        (("/v1/messages",), {"stop_sequences": ["a"] * 1000}, "stop_sequences"),
        (("/v1/messages",), {"stop_sequences": ["a" * 100_000]}, "stop_sequences"),
        (("/v1/responses",), {"max_output_tokens": "x"}, "max_output_tokens"),
        (("/v1/responses",), {"max_output_tokens": 0}, "max_output_tokens"),
        (("/v1/chat/completions",), {"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
async def test_an_error_names_the_apis_own_field_and_no_other_apis(paths: tuple[str, ...], given: dict, name: str):
    async with served() as gateway:
        for path in paths:
            for stream in (False, True):
                refused = await gateway.post(path, **{"model": "toy", "stream": stream, **PATHS[path], **given})
                assert refused.status_code == 400 and name in told(refused), (path, refused.text)
                body = refused.json()["error"]
                if isinstance(body, dict) and "param" in body:
                    assert body["param"] is None or body["param"].startswith((name, "min_tokens"))
                rest = told(refused).replace(name, "")
                assert not [other for other in OTHERS if other in rest], told(refused)


CALLED = [{"type": "function", "function": {"name": "max_tokens"}}]


@pytest.mark.parametrize(
    ("path", "given", "sentence"),
    [
        ("/v1/responses", {"max_tokens": 4}, "max_tokens is not supported here; leave it out"),
        ("/v1/messages", {"stop": ["a"]}, "stop is not supported here; leave it out"),
        ("/api/chat", {"max_tokens": 4}, "max_tokens is not supported here; leave it out"),
        ("/api/chat", {"response_format": {"type": "json_object"}}, "response_format is not supported here"),
        ("/completion", {"logprobs": 3}, "logprobs is not supported here; leave it out"),
        ("/api/chat", {"model": "max_tokens"}, "The model `max_tokens` does not exist"),
        ("/api/chat", {"tools": CALLED * 2}, "tools[1].function.name: there are two functions called 'max_tokens'"),
        ("/v1/responses", {"tool_choice": {"type": "function", "name": "max_tokens"}}, "tool_choice: tools has no"),
    ],
)
async def test_what_the_client_wrote_itself_keeps_its_name(path: str, given: dict, sentence: str):
    """That max_output_tokens is not supported would be wrong of an API that has it."""
    async with served() as gateway:
        refused = await gateway.post(path, **{"model": "toy", **PATHS[path], **given})
        assert refused.status_code in (400, 404) and told(refused).startswith(sentence), refused.text
        assert not [theirs for theirs in ("output_tokens", "num_predict") if theirs in refused.text]
        if path in ("/v1/responses", "/completion"):
            assert refused.json()["error"]["param"] in given


@pytest.mark.parametrize("most", [5000, 2**31, 10**12])
async def test_a_limit_beyond_the_context_is_cut_to_it_by_every_api(most: int):
    limits = {
        "/v1/chat/completions": ("max_tokens", {"max_tokens": most}),
        "/v1/completions": ("max_tokens", {"max_tokens": most}),
        "/v1/responses": ("max_output_tokens", {"max_output_tokens": most}),
        "/v1/messages": ("max_tokens", {"max_tokens": most}),
        "/api/chat": ("num_predict", {"options": {"num_predict": most}}),
        "/api/generate": ("num_predict", {"options": {"num_predict": most}}),
        "/completion": ("n_predict", {"n_predict": most}),
    }
    async with served() as gateway:
        for path, (name, given) in limits.items():
            made = await gateway.post(path, **{"model": "toy", "stream": False, **PATHS[path], **given})
            assert made.status_code == 200, (path, made.text)
            assert made.headers["x-duoactor-warning"].startswith(f"{name} "), path
