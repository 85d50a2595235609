"""The controller: it reads telemetry and commands γ, the depth of the trees. It is never on the path of a token.

γ is the paper's hardware-aware budget: as many draft tokens as can be drafted during one verification.

    python examples/nano/controller.py [--connect ADDRESS]
"""

import argparse
import asyncio

import msgspec
import wire
import zmq.asyncio
from line import Line

TTL_MS = 3_000  # how long a command holds; the drafter's next report renews it
MAX_GAMMA = 32


class Controller:
    def __init__(self, address: str) -> None:
        self.line = Line(address, "controller", wire.ToController)
        self.feed = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self.feed.subscribe(b"DraftStats")

    async def run(self) -> None:
        await asyncio.gather(self.line.beat(), self.follow(), self.command())

    async def follow(self) -> None:
        """Subscribe to the telemetry of each verifier that welcomes us."""
        while True:
            if isinstance(message := await self.line.receive(), wire.Welcome):
                self.feed.connect(message.telemetry)
                print(f"{self.line.hello.actor_id} is connected", flush=True)

    async def command(self) -> None:
        """Answer every drafter's report with its budget."""
        decoder, revision = msgspec.msgpack.Decoder(wire.DraftStats), 0
        while True:
            _, *frames = await self.feed.recv_multipart()
            stats = wire.decode(frames, decoder)
            if stats is not None and stats.step_us and self.line.welcome:
                (_, verify_us), (_, draft_us) = min(self.line.welcome.forward_us), min(stats.step_us)
                gamma, revision = max(1, min(MAX_GAMMA, round(verify_us / draft_us))), revision + 1
                self.line.send(wire.Budget(revision, TTL_MS, wire.Kind("", stats.actor_id), gamma))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connect", default="tcp://127.0.0.1:7601")
    asyncio.run(Controller(parser.parse_args().connect).run())
