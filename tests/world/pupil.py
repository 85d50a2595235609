"""A learner that does what the test says, and weights as toys."""

import asyncio

from protocols.messages import Finished, Role, Sampling, ToLearner
from protocols.wire import Decoder
from tests.world.caller import Caller
from tests.world.models import INFO, ToyLanguage

PROMPT = (5, 9, 33)


LANGUAGE = ToyLanguage()


SHORT = Sampling(max_tokens=20, temperature=1.0, seed=7)


class Pupil(Caller):
    """A learner that does what the test says."""

    def __init__(self, network, name: str = "learner") -> None:
        super().__init__(network, name)
        self.decoder = Decoder(ToLearner)

    async def hello(self, **fields):
        digest = INFO.tokenizer_digest
        return await super().hello(
            **{"role": Role.LEARNER, "tokenizer_digest": digest, "vocab_size": INFO.vocab_size, **fields}
        )

    async def heard(self, seconds: float = 5.0) -> list[Finished]:
        """Texts of so long a time."""
        beating = asyncio.create_task(self.beat())
        await asyncio.sleep(seconds)
        beating.cancel()
        found = []
        while (frames := self.link.receive_nowait()) is not None:
            message = self.decoder.decode(frames)
            found += [message] if isinstance(message, Finished) else []
        return found
