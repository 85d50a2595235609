"""From a target and prompts to a draft: answers, a start, training, and what it gained on prompts kept apart."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch import nn

from actors.draft_timing import measure_draft
from actors.engines.build import build_draft, build_target
from actors.engines.checkpoints.draft_vocabulary import draft_vocabulary, head_size, with_part_head
from actors.engines.checkpoints.loading import load_config, load_model, load_tokenizer, resolve_device
from actors.engines.drafts.replay import replay_draft
from actors.engines.targets.target import Target
from actors.engines.text.tokenizer import TokenizerCodec
from actors.engines.training.answers import LONGEST, TEMPERATURES, Answer, Job, Prompt, jobs, write_answers
from actors.engines.training.batches import epochs
from actors.engines.training.head import coverage, head_tokens, kept_most_frequent
from actors.engines.training.learner import Learner
from actors.engines.training.mixture import keep_the_best
from actors.engines.training.plan import Plan, Progress, Reading, Result
from actors.engines.training.shapes import fitting, steps_us
from actors.engines.training.shards import Shards
from actors.engines.training.start import Shape, draft_config, first_draft
from actors.replay.logged import LoggedRequest
from actors.verifier.timing import measure_target
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn, Sampling

WORK = "training"  # folder beside the weights: answers, checkpoint, plan
APART = 8  # every so manieth prompt of a task is kept apart
ANSWERING = 1 / 3  # of the time; the rest is training
CHECKPOINT = 60.0  # seconds of training that an interruption loses at most
WINDOW = 16  # rows of a usual round, by which a draft's shape is chosen


Report = Callable[[Progress], None]


def distill(plan: Plan, report: Report) -> Result:
    """Write the draft model directory ``plan.out``. ConfigError or ModelError in one sentence."""
    out = Path(plan.out)
    device = resolve_device(plan.device)
    apart = kept_apart([one.task for one in plan.texts])
    learned = [i for i in range(len(plan.texts)) if i not in apart]
    if not learned or not apart:
        raise ConfigError(f"{len(plan.texts)} prompts are too few to learn from some and to test on others; give more")
    if plan.shape != "auto":
        draft_config(load_config(plan.target), Shape.parse(plan.shape))
    _open(out, plan)
    target, codec = build_target(plan.target, str(device), plan.dtype, 0, max(1, plan.threads - 1))
    prompts = [Prompt(_tokens(one.text, codec), one.task) for one in plan.texts]
    target_us = measure_target(target)  # beside a drafter, which has one thread
    shape = _shape(plan, target_us, report)
    torch.set_num_threads(plan.threads)
    held, answers = _answers(plan, target, prompts, apart, learned, out / WORK, report)
    if not held.answers or not answers.answers:
        raise ConfigError("the target had no time for answers, or no room in its context; give more --minutes")
    del target  # its memory is the training's now
    source = load_model(plan.init or plan.target, torch.device("cpu"), torch.float32)
    model = source.requires_grad_(True) if plan.init else first_draft(source, shape)
    del source
    size, whole = head_tokens(model.config), int(model.config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]
    if not plan.init and size < whole:
        shown = [prompts[i] for i in learned]
        model = with_part_head(model, kept_most_frequent(out / WORK / "head.npy", shown, answers.answers, size, whole))
    drafter = "cpu" if device.type == "cpu" else str(device)
    with TemporaryDirectory() as start:
        _save(model, plan, Path(start))
        before_us, before = _judged(start, drafter, prompts, held.answers)
    torch.set_num_threads(plan.threads)
    learner = Learner(model, device)
    begun = {name: weight.clone() for name, weight in learner.averaged.state_dict().items()} if plan.init else None
    _learn(plan, learner, prompts, answers, out / WORK, report)
    share = keep_the_best(learner.averaged, begun, prompts, held.answers) if begun is not None else 1.0
    parameters = sum(p.numel() for p in learner.averaged.parameters())
    _save(learner.averaged, plan, out)
    after_us, after = _judged(str(out), drafter, prompts, held.answers)
    return Result(
        shape=str(_shape_of(model)),
        parameters=parameters,
        init=plan.init,
        prompts=len(prompts),
        kept_apart=len(apart),
        answers=len(answers.answers),
        tokens=answers.tokens,
        vocabulary=whole,
        head=head_size(model.config),
        covered=coverage(held.answers, draft_vocabulary(model)),
        steps=learner.steps,
        seconds=learner.seconds,
        share=share,
        target_us=target_us,
        before_us=before_us,
        after_us=after_us,
        before=before,
        after=after,
    )


def kept_apart(tasks: Sequence[str]) -> set[int]:
    """Indices of every ``APART``-th prompt of each task, and of the last where a task has 2 to 7."""
    apart: set[int] = set()
    for task in dict.fromkeys(tasks):
        members = [i for i, one in enumerate(tasks) if one == task]
        apart.update(members[APART - 1 :: APART] or members[1:][-1:])
    return apart


def _open(out: Path, plan: Plan) -> None:
    """The directory as ``--resume`` or its absence wants it. A run that is resumed must be the one that began."""
    path = out / WORK / "plan.json"
    same = msgspec.structs.replace(plan, resume=False, minutes=0, threads=0, out="")
    if plan.resume:
        if not path.is_file():
            raise ConfigError(f"{out} holds no training to resume; leave --resume out")
        if msgspec.json.decode(path.read_bytes(), type=Plan) != same:
            raise ConfigError(f"the training in {out} had another target, shape, start or prompts; give the same again")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; add --resume to go on with its training, or choose another directory")
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(same))


def _tokens(text: str, codec: TokenizerCodec) -> tuple[int, ...]:
    try:
        return tuple(codec.chat([ChatTurn("user", text)]))
    except RequestError:  # a model without a chat template
        return tuple(codec.encode(text))


def _shape(plan: Plan, target_us: dict[int, float], report: Report) -> Shape:
    if plan.shape != "auto":
        return Shape.parse(plan.shape)
    chosen = Path(plan.out, WORK, "shape")
    if not chosen.is_file():
        chosen.write_text(str(_fitting(plan, target_us, report)))
    return Shape.parse(chosen.read_text())  # of a training that is resumed it stays, whatever is measured today


def _fitting(plan: Plan, target_us: dict[int, float], report: Report) -> Shape:
    if plan.init:
        return _shape_of_config(load_config(plan.init))
    drafter = "cpu" if resolve_device(plan.device).type == "cpu" else plan.device

    def note(text: str) -> None:
        report(Progress("shape", 0, 0, text))

    def timed(directory: str) -> float:
        return steps_us(directory, drafter)[1]

    return fitting(
        load_config(plan.target),
        load_tokenizer(plan.target),
        target_us[max(rows for rows in target_us if rows <= WINDOW)],
        timed,
        note,
    )


def _shape_of(model: nn.Module) -> Shape:
    return _shape_of_config(model.config)


def _shape_of_config(config: Any) -> Shape:
    text = config.get_text_config()
    return Shape(int(text.hidden_size), int(text.num_hidden_layers))


def _answers(
    plan: Plan,
    target: Target,
    prompts: Sequence[Prompt],
    apart: set[int],
    learned: Sequence[int],
    work: Path,
    report: Report,
) -> tuple[Shards, Shards]:
    """Answers to the prompts kept apart, each greedy and at every temperature, and those to learn from."""
    held, answers = Shards(work / "apart"), Shards(work / "answers")
    kept = [Job(i, t, 1) for t in (0.0, *TEMPERATURES) for i in sorted(apart)]
    wanted = (Job(learned[job.prompt], job.temperature, job.seed) for job in jobs(len(learned)))
    longest = min(LONGEST, target.info.max_context // 2)
    for shards, source, seconds in (
        (held, iter(kept), plan.minutes * 60 * ANSWERING / 3),
        (answers, islice(wanted, 100_000), plan.minutes * 60 * ANSWERING),
    ):
        if plan.resume and shards.answers and len(shards.answers) >= len(kept):
            continue  # enough to go on with; the time given now is for training
        begin = time.monotonic()

        def go_on(begin: float = begin, seconds: float = seconds, shards: Shards = shards) -> bool:
            spent = time.monotonic() - begin
            text = f"{len(shards.answers)} answers, {shards.tokens} tokens"
            report(Progress("answers", min(1.0, spent / seconds), max(0.0, seconds - spent), text))
            return spent < seconds

        write_answers(target, prompts, _missing(source, shards), shards.add, go_on, longest)
        shards.flush()
    return held, answers


def _missing(source: Iterator[Job], shards: Shards) -> Iterator[Job]:
    done = shards.done
    return (job for job in source if job not in done)


def _learn(
    plan: Plan, learner: Learner, prompts: Sequence[Prompt], answers: Shards, work: Path, report: Report
) -> None:
    """Until the time of all runs together is over, with a checkpoint every minute."""
    state = work / "state.pt"
    earlier = 0.0
    if plan.resume and state.is_file():
        learner.load(state)
        earlier = learner.seconds
    total = earlier + plan.minutes * 60 * (1 if earlier else 1 - ANSWERING)
    columns = head_size(learner.model.config)
    begin, saved = time.monotonic(), 0.0
    for batch in epochs(prompts, answers.answers, columns, learner.device, seed=learner.steps):
        spent = time.monotonic() - begin
        if earlier + spent >= total:
            break
        learner.step(batch, (earlier + spent) / total)
        learner.seconds = earlier + time.monotonic() - begin
        if learner.seconds - earlier - saved > CHECKPOINT:
            saved = learner.seconds - earlier
            learner.save(state)
        text = f"step {learner.steps}, {learner.acceptance:.3f} of the tokens accepted"
        report(Progress("training", min(1.0, learner.seconds / total), max(0.0, total - learner.seconds), text))
    learner.save(state)


def _judged(
    directory: str, device: str, prompts: Sequence[Prompt], answers: Sequence[Answer]
) -> tuple[dict[int, float], list[Reading]]:
    """What a draft's steps take, and how it reads the answers, by temperatures and tasks: as a drafter would serve."""
    draft = build_draft(directory, device, "auto", 0, 1)
    texts = [
        LoggedRequest(
            prompt=prompts[one.job.prompt].tokens,
            text=tuple(one.tokens.tolist()),
            sampling=Sampling(temperature=one.job.temperature, seed=one.job.seed),
            task=prompts[one.job.prompt].task,
        )
        for one in answers
    ]
    found = [
        Reading(temperature=text.sampling.temperature, task=text.task, ranks=tuple(ranks.tolist()))
        for text, ranks in zip(texts, replay_draft(draft, texts), strict=True)
    ]
    return measure_draft(draft), sorted(found, key=lambda one: (one.temperature, one.task))


def _save(model: nn.Module, plan: Plan, out: Path) -> None:
    """As any other model's directory: bfloat16 weights, configuration, the target's tokenizer."""
    kept: Any = copy.deepcopy(model).to("cpu", torch.bfloat16)
    kept.save_pretrained(out)
    load_tokenizer(plan.target).save_pretrained(out)
