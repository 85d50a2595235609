"""The folder next to a draft's weights that its training is resumed from: prompts, answers, a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from actors.files import whole_file
from actors.training.plan import TrainingPlan
from actors.training.shards import Shards
from protocols.errors import ConfigError


class Workspace:
    """A training's files. Nothing is written before :meth:`begin`: a refused run leaves no folder."""

    def __init__(self, plan: TrainingPlan) -> None:
        """ConfigError if the directory is not as ``--resume`` or its absence wants it, or if the training that is to be
        resumed is another one."""
        self.out = Path(plan.out)
        self._folder = self.out / "training"
        self._asked = msgspec.structs.replace(plan, resume=False, minutes=0, cpus=(), out="", device="")
        if plan.resume:
            self._check_same()
        elif self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConfigError(
                f"{self.out} exists already; add --resume to go on with its training, or choose another directory"
            )

    @property
    def _plan(self) -> Path:
        return self._folder / "plan.json"

    @property
    def checkpoint(self) -> Path:
        return self._folder / "state.pt"

    def head(self, size: int) -> Path:
        """The ids of the tokens that an output layer of this size covers."""
        return self._folder / f"head-{size}.npy"

    @property
    def shape(self) -> Path:
        return self._folder / "shape"

    def _check_same(self) -> None:
        if not self._plan.is_file():
            raise ConfigError(f"{self.out} holds no training to resume; leave --resume out")
        try:
            before = msgspec.json.decode(self._plan.read_bytes(), type=TrainingPlan)
        except msgspec.MsgspecError:
            raise ConfigError(
                f"{self._plan} is of another version of duoactor, or damaged; leave --resume out and name another --out"
            ) from None
        if before != self._asked:
            raise ConfigError(
                f"the training in {self.out} had another target, shape, start or prompts; give the same again"
            )

    def begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self._plan) as file:
            file.write(msgspec.json.encode(self._asked))

    def shards(self) -> tuple[Shards, Shards]:
        """The answers to the prompts kept apart, and those to learn from."""
        return Shards(self._folder / "apart"), Shards(self._folder / "answers")
