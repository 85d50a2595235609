"""The drafter: a mirror of committed texts, below which it grows trees. Kill it at any time; only speed is lost.

python examples/nano/drafter.py [--connect ADDRESS] [--model DIR]
"""

import argparse
import asyncio
import math
import time

import models
import noise
import numpy as np
import wire
from line import Line
from tree import Node, Tree
from wire import Close, Decline, Drain, Grow, Message, Open, Resync, Verdict, Welcome

BRANCHES = {"auto": 3, "tree": 3, "pearl": 1}  # children of a node, by method; other methods are declined
GAMMA = 8  # depth of the tree under a plan that names none
FLOOR, NODES = math.log(0.05), 64  # least chance of a path that is worth a draft step; nodes of a tree, at most


class Lease:
    """One stream that the verifier has lent, under one epoch."""

    def __init__(self, opened: Open, eos: frozenset[int]) -> None:
        self.rid, self.epoch, self.sampling, self.plan = opened.rid, opened.epoch, opened.sampling, opened.plan
        self.stops = {*opened.sampling.stop_token_ids, *(() if opened.sampling.ignore_eos else eos)}
        self.text = list(opened.prefix)
        self.tree = Tree(self.text)
        self.look = math.inf  # when the verifier cuts its next window
        self.awaited = 0  # drafts in a row that the verifier waits for
        self.complete = False  # the verifier knows that nothing more comes

    def verdict(self, verdict: Verdict) -> None:
        """Mirror what was committed. The subtree below it survives, the rest is forgotten."""
        tokens = verdict.tokens[len(self.text) - verdict.base_len :]
        self.plan = verdict.plan or self.plan
        self.text.extend(tokens)
        self.tree.advance(tokens)
        self.awaited, self.complete = verdict.awaited or 0, False
        self.look = time.monotonic() + ((verdict.due_us or 0.0) + (verdict.verify_us or 0.0)) / 1e6

    def leaf(self) -> Node | None:
        """The likeliest node that is not expanded; None: the phase is over."""
        root, nodes = self.tree.root, list(self.tree.nodes())
        deepest, floor = root.position + (self.plan.gamma or GAMMA), root.total + FLOOR
        leaves = [n for n in nodes if n.position < deepest and n.total > floor and n.token not in self.stops]
        leaves = [n for n in leaves if not n.expanded] if root.expanded else [root]
        return max(leaves, key=lambda node: node.total) if leaves and len(nodes) < NODES else None

    def expanded(self, leaf: Node, logits: np.ndarray) -> None:
        """Add the likeliest children under the noise that the target will use, with their chances."""
        scores = noise.scores(logits, self.sampling.temperature, self.sampling.seed, leaf.position + 1)
        chances = np.exp(scores - np.logaddexp.reduce(scores))
        leaf.expanded = True
        for token in np.argsort(-chances)[: BRANCHES[self.plan.method]]:
            if chances[token] > 0.01:
                self.tree.add(leaf, int(token), math.log(chances[token]))

    def due(self, step_s: float) -> bool:
        """Whether to send: the phase is over, the verifier waits, or it looks before another step could end."""
        if self.leaf() is None:
            return not self.complete
        waited_for = 0 < self.awaited <= self.tree.depth()
        return waited_for or (time.monotonic() > self.look - 2 * step_s and self.unsent())

    def unsent(self) -> bool:
        return any(not node.sent for node in self.tree.nodes())

    def flush(self) -> Grow:
        """The nodes that the verifier does not have, with their ancestors."""
        nodes, parents = self.tree.flat(node for node in self.tree.nodes() if not node.sent)
        tokens, logprobs = tuple(node.token for node in nodes), tuple(node.total - node.parent.total for node in nodes)
        for node in nodes:
            node.sent = True
        self.awaited, self.look, self.complete = 0, math.inf, self.leaf() is None
        return Grow(self.rid, self.epoch, len(self.text), parents, tokens, logprobs, complete=self.complete)


class Drafter:
    def __init__(self, model: models.Toy | models.Transformers, address: str, actor_id: str = "") -> None:
        self.line, self.model = Line(address, "drafter", wire.ToDrafter, actor_id, model), model
        self.leases: dict[str, Lease] = {}  # by request
        self.wake = asyncio.Event()
        self.step_s = 0.0  # time of a draft step: a running mean

    async def run(self) -> None:
        await asyncio.gather(self.inbox(), self.grow(), self.report(), self.line.beat())

    async def grow(self) -> None:
        """Expand a leaf of each lease in turn; send what is due."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            for lease in list(self.leases.values()):
                if (leaf := lease.leaf()) is not None:
                    await self.expand(lease, leaf)
                    self.wake.set()
                if self.leases.get(lease.rid) is lease and lease.due(self.step_s):
                    self.line.send(lease.flush())

    async def expand(self, lease: Lease, leaf: Node) -> None:
        """One draft step. A verdict may arrive meanwhile: the children of a node that has died do no harm."""
        path, parents = lease.tree.flat([leaf])
        tokens, text, began = [node.token for node in path], list(lease.text), time.monotonic()
        logits = await asyncio.to_thread(self.model.logits, text, tokens, parents)
        self.step_s += 0.2 * (time.monotonic() - began - self.step_s)
        if (welcome := self.line.welcome) is not None:
            lease.expanded(leaf, logits[-1][: welcome.vocab_size])  # a draft's vocabulary may be padded

    async def inbox(self) -> None:
        while True:
            self.receive(await self.line.receive())
            self.wake.set()

    def receive(self, message: Message) -> None:
        match message:
            case Welcome():
                self.leases.clear()
                print(f"{self.line.hello.actor_id} is connected", flush=True)
            case Open():
                self.open(message)
            case Verdict():
                self.verdict(message)
            case Drain():
                self.line.close()
                raise SystemExit
            case Close() if (lease := self.leases.get(message.rid)) is not None and lease.epoch <= message.epoch:
                del self.leases[message.rid]

    def open(self, message: Open) -> None:
        known, prefix = self.leases.get(message.rid), message.prefix
        fits = len(prefix) + 2 * GAMMA <= self.model.max_context and max(prefix) < self.model.vocab_size
        if message.plan.method not in BRANCHES or not fits:
            self.line.send(Decline(message.rid, message.epoch, lasting=True))
        elif known is None or known.epoch < message.epoch:
            self.leases[message.rid] = Lease(message, self.model.eos)

    def verdict(self, message: Verdict) -> None:
        lease = self.leases.get(message.rid)
        have = len(lease.text) if lease is not None and lease.epoch >= message.epoch else 0
        if message.base_len > have:  # a verdict was lost, or the Open
            self.line.send(Resync(message.rid, message.epoch, have))
        elif lease.epoch == message.epoch:
            lease.verdict(message)
            if lease.unsent():
                self.line.send(lease.flush())  # what has survived: the verifier may be waiting for it

    async def report(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self.step_s:
                step_us = ((1, max(0.1, self.step_s * 1e6)),)
                self.line.send(wire.DraftStats(self.line.hello.actor_id, step_us, float(bool(self.leases))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connect", default="tcp://127.0.0.1:7601")
    parser.add_argument("--model", default="", help="directory of a transformers model (default: the toy)")
    parser.add_argument("--forward-ms", type=float, default=2.0, help="what a step of the toy takes")
    parser.add_argument("--actor-id", default="")
    options = parser.parse_args()
    model = models.load(options.model, 4, options.forward_ms)
    asyncio.run(Drafter(model, options.connect, options.actor_id).run())
