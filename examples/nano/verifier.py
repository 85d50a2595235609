"""The verifier: it alone owns the committed text, and emits only tokens that the target chose.

python examples/nano/verifier.py [--bind ADDRESS] [--model DIR]
"""

import argparse
import asyncio
import contextlib
import itertools
import time
import uuid
from dataclasses import dataclass, field

import models
import msgspec
import noise
import wire
import zmq.asyncio
from tree import Tree, walk
from wire import Chunk, Decline, Generate, Grow, Heartbeat, Hello, Message, Open, Plan, Refuse, Resync, Verdict, Welcome

HEARTBEAT_MS, TTL_MS = 500, 2_000
WINDOW = 16  # draft tokens in one round, at most
GAMMA = 8  # depth of the tree while no controller says otherwise
WAIT, AWAITED = 0.3, 2  # with an empty tree: longest wait, in forwards; drafts in a row that end it
LIMIT = 512  # nodes of a tree


@dataclass
class Peer:
    hello: Hello
    seen: float
    gamma: int = GAMMA
    until: float = 0.0  # when that gamma, the controller's, is void


@dataclass(eq=False)
class Stream:
    """One request: its text, the tree of drafts below it, and the lease under which a drafter grows that tree."""

    client: bytes
    request: Generate
    text: list[int]
    prompt_len: int
    tree: Tree
    spelled: str  # text that the client has
    drafter: bytes | None = None  # who has the lease
    epoch: int = 0
    round: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)  # enough drafts have come
    ended: bool = False


class Verifier:
    def __init__(self, model: models.Toy | models.Transformers, address: str) -> None:
        if not address.startswith("tcp://127.0.0.1:"):
            raise SystemExit("nano has no keys, so it binds tcp://127.0.0.1:PORT only; for other hosts use duoactor")
        context = zmq.asyncio.Context.instance()
        self.router, self.publisher = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
        self.router.set(zmq.ROUTER_MANDATORY, 1)  # a send to a peer that has gone fails
        self.router.bind(address)
        self.publisher.bind("tcp://127.0.0.1:*")
        self.decoder = msgspec.msgpack.Decoder(wire.ToVerifier)
        self.model, self.incarnation = model, uuid.uuid4().hex[:12]
        self.peers: dict[bytes, Peer] = {}
        self.streams: dict[tuple[bytes, str], Stream] = {}
        self.queue: asyncio.Queue[Stream] = asyncio.Queue()  # streams take turns
        self.epochs = itertools.count(1)
        began = time.monotonic()
        model.logits(model.encode("The"), [], [])
        self.forward_s = time.monotonic() - began  # then a running mean

    async def run(self) -> None:
        await asyncio.gather(self.rounds(), self.inbox(), self.watch())

    async def rounds(self) -> None:
        while True:
            stream = await self.queue.get()
            try:
                await self.round(stream)
            except Exception as error:
                self.send(stream.client, wire.Failed(stream.request.rid, "internal", str(error)))
                self.end(stream)
            if not stream.ended:
                self.queue.put_nowait(stream)

    async def round(self, stream: Stream) -> None:
        """Verify the likeliest drafts in one forward. Their drafter goes on growing the tree meanwhile."""
        await self.wait_for_drafts(stream)
        nodes, parents = stream.tree.flat(stream.tree.window(WINDOW))
        tokens, text, began = [node.token for node in nodes], list(stream.text), time.monotonic()
        logits = await asyncio.to_thread(self.model.logits, text, tokens, parents)
        if stream.round:  # the first forward has the whole prompt
            self.forward_s += 0.2 * (time.monotonic() - began - self.forward_s)
        s, places = stream.request.sampling, [len(text), *(node.position + 1 for node in nodes)]
        rows = zip(logits, places, strict=True)
        chosen = [int(noise.scores(row, s.temperature, s.seed, place).argmax()) for row, place in rows]
        path, own = walk(tokens, parents, chosen)
        if not stream.ended:  # else it was cancelled meanwhile
            self.commit(stream, [*(tokens[i] for i in path), own])

    async def wait_for_drafts(self, stream: Stream) -> None:
        """Wait where the tree is empty, never longer than a part of a forward; the first token waits for nobody."""
        stream.grown.clear()
        if stream.drafter and stream.round and not stream.tree.root.children:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stream.grown.wait(), WAIT * self.forward_s)

    def commit(self, stream: Stream, tokens: list[int]) -> None:
        """Append what the target chose, all but the last of which were drafts. Nothing else changes a text."""
        drafts, base = len(tokens) - 1, len(stream.text)
        tokens, reason = self.until_end(stream, tokens)
        stream.text.extend(tokens)
        stream.tree.advance(tokens)
        stream.round += 1
        rid, accepted = stream.request.rid, tuple(i < drafts for i in range(len(tokens)))
        pieces = tuple(self.spell(stream, base + i + 1) for i in range(len(tokens)))
        chunk = Chunk(rid, base - stream.prompt_len, tuple(tokens), pieces, accepted, reason)
        if reason:
            self.end(stream)
        elif stream.drafter:
            forward_us, waits = self.forward_s * 1e6, not stream.tree.root.children
            due_us, awaited = (WAIT * forward_us, AWAITED) if waits else (None, None)
            verdict = (base, tuple(tokens), due_us, self.plan(stream.drafter), forward_us, awaited)
            self.send(stream.drafter, Verdict(rid, stream.epoch, stream.round, *verdict))
        if not self.send(stream.client, chunk):
            self.gone(stream.client)

    def until_end(self, stream: Stream, tokens: list[int]) -> tuple[list[int], str | None]:
        """The tokens up to the end of the output, and why it ends there."""
        s = stream.request.sampling
        stops = {*s.stop_token_ids, *(() if s.ignore_eos else self.model.eos)}
        room = min(stream.prompt_len + s.max_tokens, self.model.max_context) - len(stream.text)
        end = next((i + 1 for i, token in enumerate(tokens[:room]) if token in stops), None)
        return (tokens[:end], "stop") if end else (tokens[:room], "length" if room <= len(tokens) else None)

    def spell(self, stream: Stream, length: int) -> str:
        """The text that the last of ``length`` tokens completes; "" inside a character."""
        before, text = stream.spelled, self.model.decode(stream.text[stream.prompt_len : length])
        if text.endswith("\ufffd"):
            return ""
        stream.spelled = text
        return text[len(before) :]

    def plan(self, drafter: bytes) -> Plan:
        """The controller's budget while it holds, else the default."""
        peer = self.peers[drafter]
        return Plan("tree", peer.gamma if time.monotonic() < peer.until else GAMMA)

    def lend(self, stream: Stream) -> None:
        """Lend the stream to the drafter with the fewest leases, under an epoch that fences off all earlier ones."""
        lent = [one.drafter for one in self.streams.values()]
        drafters = [at for at, peer in self.peers.items() if peer.hello.role == "drafter"]
        if drafters and stream.drafter is None and stream.request.method != "vanilla":
            stream.drafter, stream.epoch = min(drafters, key=lent.count), next(self.epochs)
            self.open(stream)

    def open(self, stream: Stream) -> None:
        lease = (stream.epoch, tuple(stream.text), stream.prompt_len, stream.request.sampling)
        self.send(stream.drafter, Open(stream.request.rid, *lease, self.plan(stream.drafter)))

    def end(self, stream: Stream) -> None:
        if stream.drafter:
            self.send(stream.drafter, wire.Close(stream.request.rid, stream.epoch))
        self.streams.pop((stream.client, stream.request.rid), None)
        stream.ended = True

    def send(self, peer: bytes, message: Message) -> bool:
        return self.router.send_multipart([peer, *wire.encode(message)], zmq.DONTWAIT).exception() is None

    async def inbox(self) -> None:
        while True:
            peer, *frames = await self.router.recv_multipart()
            message, known = wire.decode(frames, self.decoder), self.peers.get(peer)
            if message is None:
                self.send(peer, Refuse("malformed", "nano does not know this message"))
            elif isinstance(message, Hello):
                self.hello(peer, message)
            elif known is None:
                self.send(peer, Refuse("unknown_peer", "say Hello first"))
            else:
                busy_s = min(60.0, message.busy_ms / 1000) if isinstance(message, Heartbeat) else 0.0
                known.seen = max(known.seen, time.monotonic() + busy_s)
                self.receive(peer, known, message)

    def hello(self, peer: bytes, hello: Hello) -> None:
        model, telemetry = self.model, self.publisher.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        if hello.role == "drafter" and hello.vocab_size and hello.tokenizer_digest != model.digest:
            self.send(peer, Refuse("tokenizer", f"{hello.model_id} has another tokenizer than {model.model_id}"))
            return
        self.gone(peer)  # what it had before is void
        self.peers[peer] = Peer(hello, time.monotonic())
        facts = (model.model_id, model.vocab_size, model.max_context, ((1, self.forward_s * 1e6),))
        self.send(peer, Welcome(self.incarnation, HEARTBEAT_MS, TTL_MS, telemetry, *facts))
        for stream in self.streams.values():
            self.lend(stream)

    def receive(self, peer: bytes, known: Peer, message: Message) -> None:
        match message:
            case Heartbeat():
                self.send(peer, Heartbeat())
            case wire.Goodbye():
                self.gone(peer)
            case Generate() if known.hello.role == "client":
                self.generate(peer, message)
            case wire.Cancel() if (stream := self.streams.get((peer, message.rid))) is not None:
                self.end(stream)
            case Grow() | Resync() | Decline():
                for stream in list(self.streams.values()):  # the others are fenced off
                    if (stream.drafter, stream.epoch, stream.request.rid) == (peer, message.epoch, message.rid):
                        self.drafted(stream, message)
            case wire.DraftStats() if message.actor_id == known.hello.actor_id:
                self.publisher.send_multipart([b"DraftStats", *wire.encode(message)], zmq.DONTWAIT)
            case wire.Budget() if known.hello.role == "controller" and message.gamma:
                for one in self.peers.values():
                    if message.kind.drafter in ("", one.hello.actor_id):
                        one.gamma, one.until = message.gamma, time.monotonic() + message.ttl_ms / 1000

    def generate(self, client: bytes, request: Generate) -> None:
        prompt = self.model.encode(request.prompt) if isinstance(request.prompt, str) else list(request.prompt)
        text, s, code = [*prompt, *request.generated], request.sampling, ""
        wanted = [name for name in s.__struct_fields__ if getattr(s, name) != getattr(wire.Sampling(), name)]
        wanted += [name for name in wire.REFUSED if getattr(request, name)]
        if refused := [name for name in wanted if name not in wire.HONOURED]:
            code, detail = "unsupported", f"nano has no {refused[0]}; it takes a prompt, and {', '.join(wire.HONOURED)}"
        elif not prompt or not all(0 <= token < self.model.vocab_size for token in text):
            code, detail = "bad_request", "the prompt is empty, or has ids outside the vocabulary"
        elif len(text) >= min(len(prompt) + s.max_tokens, self.model.max_context):
            code, detail = "context_length", "there is no room for another token"
        if code:
            self.send(client, wire.Failed(request.rid, code, detail))
            return
        if (old := self.streams.get((client, request.rid))) is not None:
            self.end(old)
        stream = Stream(client, request, text, len(prompt), Tree(text), self.model.decode(request.generated))
        self.streams[client, request.rid] = stream
        self.lend(stream)
        self.queue.put_nowait(stream)

    def drafted(self, stream: Stream, message: Grow | Resync | Decline) -> None:
        """A message of the drafter that has the lease."""
        match message:
            case Grow() if self.is_sound(stream, message):
                stream.tree.merge(stream.text, message)
                if message.complete or stream.tree.depth() >= AWAITED:
                    stream.grown.set()
            case Resync(have_len=have) if 0 < have < len(stream.text):
                missed = tuple(stream.text[have:])
                self.send(stream.drafter, Verdict(message.rid, stream.epoch, stream.round, have, missed))
            case Resync():
                self.open(stream)
            case Decline():
                stream.drafter = None  # until a drafter comes or goes

    def is_sound(self, stream: Stream, grow: Grow) -> bool:
        """A drafter may be mistaken, or hostile."""
        nodes = enumerate(zip(grow.parents, grow.tokens, grow.logprobs, strict=False))
        size = self.model.vocab_size
        sane = all(-1 <= parent < i and 0 <= token < size and -1e9 <= lp <= 0 for i, (parent, token, lp) in nodes)
        even = len(grow.parents) == len(grow.tokens) == len(grow.logprobs)
        room = len(grow.tokens) + sum(1 for _ in stream.tree.nodes()) <= LIMIT
        return sane and even and room and 1 <= grow.base_len <= len(stream.text)

    async def watch(self) -> None:
        """Give up peers that are silent."""
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            for peer, known in list(self.peers.items()):
                if time.monotonic() - known.seen > TTL_MS / 1000:
                    self.gone(peer)

    def gone(self, peer: bytes) -> None:
        """A client's streams end; a drafter's go on with another, or alone."""
        self.peers.pop(peer, None)
        for stream in list(self.streams.values()):
            if stream.client == peer:
                self.end(stream)
            elif stream.drafter == peer:
                stream.drafter = None
                self.lend(stream)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bind", default="tcp://127.0.0.1:7601")
    parser.add_argument("--model", default="", help="directory of a transformers model (default: the toy)")
    parser.add_argument("--forward-ms", type=float, default=20.0, help="what a forward of the toy takes")
    options = parser.parse_args()
    verifier = Verifier(models.load(options.model, 6, options.forward_ms), options.bind)
    print(f"{verifier.model.model_id} is ready at {options.bind}", flush=True)
    asyncio.run(verifier.run())
