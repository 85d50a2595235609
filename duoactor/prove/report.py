"""The findings of a proof, for people and as one document."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from duoactor import render
from duoactor.bench.provenance import machine, versions
from duoactor.launch.deployment import Deployment
from duoactor.prove.proof import Evidence, Proof
from protocols.messages import StatusReport, TargetStatus

INDENT = " " * 11  # behind the labels


class ProofReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``duoactor prove --json`` prints."""

    command: str
    target: str
    draft: str
    served: TargetStatus
    machine: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    seed: int
    evidence: Evidence
    chain: str  # number of texts and hash
    expected_chain: str  # chain that another machine found; empty: none was given

    @property
    def good(self) -> bool:
        """Nothing differs, nothing failed, something was compared, and the chain is as expected."""
        found = self.evidence
        agrees = self.expected_chain in ("", self.chain)
        return found.tokens > 0 and found.difference is None and not found.failed and agrees


def report(
    proof: Proof, deployment: Deployment, status: StatusReport, seconds: float, check: str, command: str
) -> ProofReport:
    """``command``: makes the same proof again, but for its length."""
    return ProofReport(
        command=command,
        target=render.model_name(deployment.verifier.target),
        draft=render.model_name(deployment.first_draft),
        served=status.target,
        machine=machine(),
        versions=versions(),
        seconds=round(seconds, 1),
        seed=proof.questions.seed,
        evidence=proof.evidence,
        chain=str(proof.chain),
        expected_chain=check,
    )


def lines(found: ProofReport) -> Iterator[str]:
    """One screen; the verdict first."""
    evidence = found.evidence
    yield verdict(found)
    yield ""
    if (difference := evidence.difference) is not None:
        yield f"where      {difference.request}"
        yield f"           at {difference.position} of the answer"
        yield f"alone      {difference.expected}"
        yield f"here       {difference.got}"
        yield f"beside     {len(difference.batch)} other requests"
        yield from (f"           {one}" for one in difference.batch)
    yield from (f"failed     {one}" for one in evidence.failed[:8])
    yield f"target     {found.target}, {found.served.dtype} on {found.served.device}; drafts: {found.draft}"
    yield f"compared   {evidence.answers:,} answers with {found.chain.partition(':')[0]} that were decoded alone"
    yield f"           of {evidence.logprobs:,} tokens the bits of log-probabilities as well"
    yield f"           by {_shares(evidence.by_method)}"
    yield f"           at temperature {_shares(evidence.by_temperature)}"
    yield f"           streams at once: {_shares(dict(sorted(evidence.by_streams.items())))}"
    yield f"meanwhile  {evidence.accepted:,} of {evidence.drafted:,} draft tokens were accepted"
    yield f"           {evidence.reused:,} prompt tokens came from the prefix cache"
    yield f"           {evidence.killed} drafters killed, {evidence.swapped} swaps, {evidence.left} answers left early"
    yield from (f"not used   {method}: {why}" for method, why in evidence.missing.items())
    yield f"chain      {found.chain}"
    if found.expected_chain:
        yield f"           expected: {found.expected_chain}"
    else:
        yield "           the same command on a machine of the same kind compares it:"
        words = [*map(shlex.quote, shlex.split(found.command)), "--check", found.chain]
        yield f"{INDENT}{render.folded_command(words, sys.stdout, INDENT)}"
    where = found.machine
    yield f"kind       {where.get('accelerator', where['cpu'])}, {found.served.threads} threads"
    yield "           " + ", ".join(f"{name} {version}" for name, version in found.versions.items())


def verdict(found: ProofReport) -> str:
    evidence = found.evidence
    compared = f"{evidence.tokens:,} tokens compared in {found.seconds:.0f} s"
    if evidence.difference is not None:
        return f"A text is not the target's own: {compared}, then one differs. Please report this."
    if evidence.failed:
        return f"{len(evidence.failed)} requests failed; {compared}, 0 differ."
    if not evidence.tokens:
        return "Nothing was compared: give it more --minutes."
    if found.expected_chain not in ("", found.chain):
        return f"0 tokens differ here, but the chain is not the expected one: {compared}."
    return f"{compared}, 0 differ from the same request decoded alone."


def _shares(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{_name(key)} {count:,}" for key, count in counts.items())


def _name(key: object) -> str:
    return f"{key:g}" if isinstance(key, float) else str(key)
