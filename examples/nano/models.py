"""Models. Each has one call, ``logits(text, tokens, parents)``: a row behind the text, then one behind each node of a
tree below it. ``parents[i] < i`` is the index of node i's parent; -1 is the end of the text.
The toy is made in place: an n-gram model over the bytes of Python's own documentation. ``--model DIR`` takes any causal
language model with plain attention that transformers can load.
"""

import functools
import hashlib
import json
import pydoc_data.topics
import time
from os.path import commonprefix
from pathlib import Path

import numpy as np


class Toy:
    """The chance of a byte behind the last ``order`` bytes, as counted in a text; shorter contexts fill the gaps."""

    vocab_size, max_context, eos, digest = 256, 1 << 20, frozenset({0}), "bytes"

    def __init__(self, order: int, forward_ms: float = 0.0) -> None:
        self.model_id, self.order, self.forward_s = f"toy-{order}", order, forward_ms / 1000
        text = "\0".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore")
        self.corpus = np.frombuffer(text, np.uint8)
        self.probabilities = functools.cache(self._probabilities)
        self.behind = functools.cache(self._behind)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def logits(self, text: list[int], tokens: list[int], parents: list[int]) -> np.ndarray:
        end = time.monotonic() + self.forward_s
        contexts = [bytes(text[-self.order :])]
        for token, parent in zip(tokens, parents, strict=True):
            contexts.append((contexts[parent + 1] + bytes([token]))[-self.order :])
        rows = np.log(np.stack([self.probabilities(context) for context in contexts]))
        time.sleep(max(0.0, end - time.monotonic()))
        return rows

    def _probabilities(self, context: bytes) -> np.ndarray:
        """Counts of what follows the context, with the estimate of a shorter context as one count more."""
        shorter = self.probabilities(context[1:]) if context else np.full(256, 1 / 256, np.float32)
        counts = np.bincount(self.corpus[self.behind(context)], minlength=256).astype(np.float32)
        return (counts + shorter) / (counts.sum() + 1)

    def _behind(self, context: bytes) -> np.ndarray:
        """Where the corpus goes on behind a context."""
        if not context:
            return np.arange(len(self.corpus) - 1)
        at = self.behind(context[:-1])
        at = at[self.corpus[at] == context[-1]] + 1
        return at[at < len(self.corpus)]


class Transformers:
    """A model of transformers, in float32. It computes what is new of a text, and the tree below it, in one forward."""

    ROWS = 32  # forwards have a multiple of so many rows: sums of another shape may differ in the last bits

    def __init__(self, directory: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.model_id, self.vocab_size = Path(directory).name, self.model.config.vocab_size
        self.max_context = self.model.config.max_position_embeddings
        eos = self.model.generation_config.eos_token_id
        self.eos = frozenset(eos if isinstance(eos, list) else [eos])
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())["model"]
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
        content = json.dumps({"vocab": vocabulary, "merges": tokenizer.get("merges", [])}, ensure_ascii=False)
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        self.cached, self.cache = [], DynamicCache()  # the last text, and its keys and values

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def logits(self, text: list[int], tokens: list[int], parents: list[int]) -> np.ndarray:
        torch, keep = self.torch, min(len(commonprefix([self.cached, text])), len(text) - 1)  # noqa: RUF071
        self.cache.crop(keep - self.cache.get_seq_length())  # minus the tokens to forget
        new, fresh = len(text) - keep, [*text[keep:], *tokens]
        rows = -(-len(fresh) // self.ROWS) * self.ROWS
        sees = torch.ones(rows, keep + rows, dtype=torch.bool).tril(keep)  # by row: which columns it attends to
        sees[new:, keep:] = False
        positions = [*range(keep, len(text)), *([len(text) - 1] * (rows - new))]
        for row, parent in enumerate(parents, new):
            above = new - 1 if parent < 0 else new + parent
            sees[row], positions[row] = sees[above], positions[above] + 1
            sees[row, keep + row] = True
        sees[len(fresh) :, 0] = True  # padding must see something
        with torch.inference_mode():
            out = self.model(
                torch.tensor([[*fresh, *([0] * (rows - len(fresh)))]]),
                attention_mask=torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None],
                position_ids=torch.tensor([positions]),
                past_key_values=self.cache,
            )
        self.cached = text
        return out.logits[0, new - 1 : len(fresh)].numpy()


def load(directory: str, order: int, forward_ms: float) -> Toy | Transformers:
    """The model in a directory, or the toy of that order, whose forwards take as long as a large model's."""
    return Transformers(directory) if directory else Toy(order, forward_ms)
