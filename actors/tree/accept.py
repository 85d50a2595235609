"""The verify rule: a draft token is accepted iff it is the token that the target sampled at its parent."""

from __future__ import annotations

from collections.abc import Sequence

ROOT = -1  # parent's index of nodes below the last committed token


def walk(tokens: Sequence[int], parents: Sequence[int], sampled: Sequence[int]) -> tuple[list[int], int]:
    """The indices of the accepted nodes, top first, and the target's own token that follows them.

    ``parents[i]`` < i, or ROOT. ``sampled[0]`` is the token that the target chose after the root, ``sampled[i + 1]``
    the one after node i. The drafts decide only how long the path is, so the output's distribution is the target's
    (arXiv 2408.07978). Of siblings with the same token the first listed counts.
    """
    path: list[int] = []
    at = ROOT
    for node, parent in enumerate(parents):
        if parent == at and tokens[node] == sampled[at + 1]:
            path.append(node)
            at = node
    return path, sampled[at + 1]


def depths_of(parents: Sequence[int]) -> list[int]:
    """The depth of every node; the root's children have depth 1."""
    depths: list[int] = []
    for node, parent in enumerate(parents):
        assert ROOT <= parent < node, "a parent comes before its child"
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths
