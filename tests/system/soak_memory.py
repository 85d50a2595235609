"""What processes hold while a soak runs: see ``soak.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PART = 1000  # requests; fewer where all are not three times as many
GROWTH_MB = 40.0  # growth of the last part over the first, at most: caches of texts fill up
ENOUGH = 300  # requests of the run, or of a process's life, for growth in it to count: actors had to load

Size = tuple[int, float]  # requests that were over by then, and megabytes


def parts(sizes: Sequence[Size], begin: int, end: int) -> dict[str, float]:
    """The most that was held during the first, middle and last :data:`PART` of the requests from ``begin`` to ``end``;
    a part in which nobody looked is left out."""
    width = min(PART, (end - begin) / 3)
    found: dict[str, float] = {}
    for part, at in (("first", begin), ("middle", (begin + end - width) / 2), ("last", end - width)):
        held = [size for requests, size in sizes if at <= requests <= at + width]
        if held:
            found[part] = round(max(held), 1)
    return found


class Memory:
    def __init__(self) -> None:
        self._roles: dict[str, list[Size]] = {}  # the largest process of each
        self._processes: dict[tuple[str, int], list[Size]] = {}
        self._seen: list[int] = []

    def see(self, requests: int, held: Mapping[tuple[str, int], float]) -> None:
        """``held``: megabytes by role and process id, when so many requests are over."""
        self._seen.append(requests)
        largest: dict[str, float] = {}
        for (role, pid), size in held.items():
            self._processes.setdefault((role, pid), []).append((requests, size))
            largest[role] = max(size, largest.get(role, 0.0))
        for role, size in largest.items():
            self._roles.setdefault(role, []).append((requests, size))

    def of_roles(self) -> dict[str, dict[str, float]]:
        """By thousands of the whole run, whichever processes were there."""
        return {role: parts(sizes, self._seen[0], self._seen[-1]) for role, sizes in sorted(self._roles.items())}

    def of_longest_lived(self) -> dict[str, dict[str, float]]:
        """By thousands of the life of the process of each role that was there for the most ``requests``."""
        longest: dict[str, list[Size]] = {}
        for (role, _), sizes in self._processes.items():
            if role not in longest or _span(sizes) > _span(longest[role]):
                longest[role] = sizes
        return {
            role: {"requests": _span(sizes), **parts(sizes, sizes[0][0], sizes[-1][0])}
            for role, sizes in sorted(longest.items())
        }

    def grown(self) -> list[str]:
        """Sentences about what holds more in its last thousand than in its first."""
        if self._seen[-1] - self._seen[0] < ENOUGH:
            return []
        found = [(f"a {role}", held) for role, held in self.of_roles().items()]
        found += [
            (f"the {role} that lived longest", held)
            for role, held in self.of_longest_lived().items()
            if held["requests"] >= ENOUGH
        ]
        return [
            f"{who} has grown from {held['first']} to {held['last']} MB"
            for who, held in found
            if "first" in held and "last" in held and held["last"] > held["first"] + GROWTH_MB
        ]


def _span(sizes: Sequence[Size]) -> int:
    return sizes[-1][0] - sizes[0][0]
