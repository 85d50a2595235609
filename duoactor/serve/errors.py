"""Errors as HTTP clients see them: a status, and a JSON body in the shape of OpenAI's, Anthropic's or Ollama's API."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from duoactor.serve.api_names import in_words_of
from protocols.errors import DuoactorError, RequestError
from protocols.messages import FailureCode, Sampling

RETRY_AFTER_MS = 1000.0  # wait if the verifier did not say when
NOT_SUPPORTED = "unsupported_parameter"  # OpenAI's code of an error about a parameter that the API does not have

_STATUS = {
    FailureCode.BAD_REQUEST: 400,
    FailureCode.CONTEXT_LENGTH: 400,
    FailureCode.UNSUPPORTED: 400,
    FailureCode.FORBIDDEN: 403,
    FailureCode.NOT_FOUND: 404,
    FailureCode.OVERLOADED: 429,
    FailureCode.DRAINING: 503,
    FailureCode.DEADLINE_EXCEEDED: 504,
}
_CODES = {
    FailureCode.CONTEXT_LENGTH: "context_length_exceeded",
    FailureCode.OVERLOADED: "rate_limit_exceeded",
    FailureCode.DEADLINE_EXCEEDED: "deadline_exceeded",
}
_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class ApiError(DuoactorError):
    """The request is answered with HTTP ``status`` and this message; ``param``: the parameter that is wrong."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: float = 0.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """``details``: what Anthropic's clients read of it."""
        super().__init__(detail)
        self.status, self.param, self.code, self.details = status, param, code, details
        self.retry_after_ms = retry_after_ms or RETRY_AFTER_MS

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            milliseconds = math.ceil(self.retry_after_ms)  # the openai client reads this one first
            return {"retry-after": str(-(-milliseconds // 1000)), "retry-after-ms": str(milliseconds)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}

    def told_by(self, path: str) -> ApiError:
        """The same in the words of the path's API. A parameter that the API does not have is called what the client
        called it."""
        if self.code == NOT_SUPPORTED:
            return self
        param = self.param or ""
        told = in_words_of(path, str(self), param)
        named = in_words_of(path, param, param) or None
        return ApiError(
            self.status, told, param=named, code=self.code, retry_after_ms=self.retry_after_ms, details=self.details
        )

    def openai(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def ollama(self) -> dict[str, Any]:
        return {"error": str(self)}

    def anthropic(self) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        error = {"type": kind, "message": str(self)} | ({"details": self.details} if self.details else {})
        return {"type": "error", "error": error}


def answered(error: ApiError, path: str) -> Response:
    """An error in the shape of the path's API, and in its words."""
    error = error.told_by(path)
    if path.startswith("/api/"):
        shape = error.ollama()
    else:
        shape = error.anthropic() if path.startswith("/v1/messages") else error.openai()
    return Response(msgspec.json.encode(shape), error.status, error.headers, "application/json")


def bad(param: str, problem: str) -> ApiError:
    """An error about a parameter. The message is its name, followed by ``problem``."""
    return ApiError(400, f"{param}{'' if problem.startswith(':') else ' '}{problem}", param=param)


@contextlib.contextmanager
def blamed(structure: str = "") -> Iterator[None]:
    """Errors of the verifier's client are raised as :class:`ApiError`. ``structure``: what the HTTP parameter is called
    that became ``structured_outputs``."""
    try:
        yield
    except ApiError:
        raise
    except RequestError as error:
        code = FailureCode(error.code)
        about, _, rest = str(error).partition(" ")  # a sentence about a parameter begins with its name
        param = about if about in Sampling.__struct_fields__ else None
        if about.startswith("structured_outputs") and structure:
            param = about = structure
        raise ApiError(
            _STATUS.get(code, 500),
            f"{about} {rest}".strip(),
            param=param,
            code=_CODES.get(code),
            retry_after_ms=error.retry_after_ms,
        ) from None
    except DuoactorError as error:
        raise ApiError(503, str(error)) from None  # no verifier, or a refusal
