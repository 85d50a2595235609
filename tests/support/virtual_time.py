"""The clock of the product's own replays, under the name by which tests know it: they never sleep."""

from actors.replay.clock import VirtualLoop, run

__all__ = ["VirtualLoop", "run"]
