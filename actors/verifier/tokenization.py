"""Answers clients' questions about text and tokens (``Tokenize``, ``Detokenize``).

They are answered on a thread of their own, one at a time, so that a long text delays no round; a bounded number may
wait. The tokenizer is shared with the loop: encoding and decoding only read it.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from actors.verifier.context import Context
from protocols.errors import RequestError
from protocols.limits import clipped
from protocols.messages import Detokenize, Failed, FailureCode, Message, Tokenize, Tokenized
from protocols.validation import characters

log = logging.getLogger("duoactor.verifier")
MAX_WAITING = 64  # questions
MAX_TEXT = 4 * 1024 * 1024  # characters: the text of a million tokens, which takes a second


class Tokenization:
    def __init__(self, context: Context) -> None:
        self._equipment, self._send = context.equipment, context.send
        self._codec, self._waiting = context.equipment.codec, 0

    def ask(self, peer: bytes, question: Tokenize | Detokenize) -> None:
        if self._waiting >= MAX_WAITING:
            detail = f"{MAX_WAITING} texts wait to be tokenized already; try again later"
            self._send(peer, Failed(question.rid, FailureCode.OVERLOADED, detail))
            return
        self._waiting += 1
        self._equipment.tokenizing.start(partial(self._answer, question)).add_done_callback(
            lambda future: self._answered(peer, None if future.cancelled() else future.result())
        )

    def _answered(self, peer: bytes, answer: Message | None) -> None:
        self._waiting -= 1
        if answer is not None:
            self._send(peer, answer)

    def _answer(self, question: Tokenize | Detokenize) -> Tokenized | Failed:
        try:
            ids = self._ids(question)
            pieces = self._codec.pieces(ids)
            octets = self._codec.octets(ids) if any("\ufffd" in piece for piece in pieces) else ()
            described = isinstance(question, Tokenize) and question.describe
            return Tokenized(
                question.rid,
                tuple(ids),
                tuple(pieces),
                self._codec.decode(ids, False),
                octets=tuple(octets),
                tokenizer=msgspec.json.encode(self._codec.config()).decode() if described else "",
            )
        except RequestError as error:
            return Failed(question.rid, FailureCode(error.code), clipped(str(error)))
        except Exception as error:  # the tokenizer's, about this text: no reason to end the verifier
            log.warning("a text could not be tokenized", exc_info=True)
            return Failed(question.rid, FailureCode.INTERNAL, clipped(f"the tokenizer failed: {error}"))

    def _ids(self, question: Tokenize | Detokenize) -> list[int]:
        match question:
            case Detokenize(token_ids=ids):
                most = self._equipment.model.info.vocab_size - 1
                if any(not 0 <= token <= most for token in ids):
                    detail = f"tokens must be ids of this vocabulary (0 to {most})"
                    raise RequestError(FailureCode.BAD_REQUEST, detail)
                return list(ids)
            case Tokenize(messages=turns, text=text, tools=tools, special_tokens=special, rendering=rendering):
                if len(text) + len(tools) + characters(turns) > MAX_TEXT:
                    raise RequestError(FailureCode.BAD_REQUEST, f"at most {MAX_TEXT} characters at once")
                if turns and text:
                    raise RequestError(FailureCode.BAD_REQUEST, "give either a text or messages, not both")
                return self._codec.chat(turns, tools, rendering) if turns else self._codec.encode(text, special)
