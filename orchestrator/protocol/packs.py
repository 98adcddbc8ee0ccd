"""Packs: configurations of one learner that are trained as one stack, each with the curves and the state it has alone.

The replicates of a pack are the seeds of the first configuration, then those of the second, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

import learners
from learners import registry
from learners.training.replicate_options import packed_options
from orchestrator.protocol import online
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.source import StackedDatapoints, StoreSource, StreamShape, StreamSource
from streams.schedule import Schedule, Sequential
from streams.store.task_store import TaskStore
from streams.stream import Datapoints


class RepeatedSource:
    """The streams of a stack of seeds, once for each of several configurations."""

    def __init__(self, source: StreamSource, times: int) -> None:
        self._source, self._times = source, times

    def shape(self) -> StreamShape:
        shape = self._source.shape()
        return replace(shape, ends=shape.ends * self._times)

    def read(self, start: int, count: int) -> StackedDatapoints:
        return self._repeated(self._source.read(start, count))

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        return self._source.held_out(tasks[: len(tasks) // self._times], split) * self._times

    def first_tasks(self, count: int) -> StackedDatapoints:
        return self._repeated(self._source.first_tasks(count))

    def _repeated(self, stack: StackedDatapoints) -> StackedDatapoints:
        return StackedDatapoints(np.tile(stack.image_ids, (self._times, 1, 1)), np.tile(stack.labels, (self._times, 1)))


@dataclass(frozen=True)
class MemberLearner:
    """The learner of one configuration of a pack, as a checkpoint holds it.

    Attributes:
        options: its hyper-parameters.
        setting: with its seeds.
        stack: the learner of the pack.
        rows: its replicates in the stack.
    """

    options: Any
    setting: learners.Setting
    stack: learners.Learner
    rows: slice

    def state_dict(self) -> Any:
        return self.stack.state_of_replicates([self.stack.state_dict()], self.rows)


class Pack:
    """The protocol of several configurations on the same seeds, which is that of one learner with all replicates.

    A pack of one configuration is its `OnlineProtocol`.

    Args:
        protocol: of all replicates.
        options: the hyper-parameters of each configuration.

    Attributes:
        protocol: of all replicates; its curves are only those of the newest chunk.
        curves: all measurements so far of each configuration.
    """

    def __init__(self, protocol: online.OnlineProtocol, options: Sequence[Any]) -> None:
        self.protocol, self._options = protocol, options
        seeds = protocol.learner.setting.seeds
        self._seeds = list(seeds[: len(seeds) // len(options)])
        self._totals = protocol.curves.total_batches, protocol.curves.total_tasks
        self.curves = [self._with_totals(Curves(list(self._seeds))) for _ in options]
        self._marks: dict[int, Mapping[str, float]] = {}
        self._gradients = [0] * len(options)  # those of each configuration that the protocol has not counted

    @property
    def batches(self) -> int:
        """Batches learned so far."""
        return self.protocol.batches

    @property
    def finished(self) -> bool:
        return self.protocol.finished

    def advance(self, batches: int) -> list[Curves]:
        """Learn the next batches, fewer at the end of the stream; returns the curves of each configuration."""
        stack = self.protocol.advance(batches)
        parts = [stack.replicates(self._rows(member)) for member in range(len(self.curves))]
        for member, (curves, part) in enumerate(zip(self.curves, parts, strict=True)):
            part.by_batch |= _at_first_batch(self._marks.pop(member, {}), part)
            curves.extend(part)
        self.protocol.curves = self._none_so_far(stack.batches, stack.diverged)
        return parts

    def mark(self, member: int, values: Mapping[str, float]) -> None:
        """Add values to a configuration's curves at the next batch, the same for every seed: options that changed."""
        self._marks[member] = values

    def learner(self, member: int) -> learners.Learner | MemberLearner:
        """The learner of a configuration, to be saved."""
        learner = self.protocol.learner
        if len(self.curves) == 1:
            return learner
        setting = replace(learner.setting, seeds=self._seeds)
        return MemberLearner(self._options[member], setting, learner, self._rows(member))

    def state_dict(self, member: int) -> dict[str, Any]:
        """The state of a configuration, equal to that of its protocol alone."""
        state, rows = self.protocol.state_dict(), self._rows(member)
        if len(self.curves) == 1:
            return state
        of_seeds = {name: state[name][rows] for name in ("tasks_over", "lost")}
        gradients = state["gradient_evaluations"] + self._gradients[member]
        learner = self.protocol.learner.state_of_replicates([state["learner"]], rows)
        return {**state, **of_seeds, "gradient_evaluations": gradients, "learner": learner}

    def load_state_dicts(self, states: Sequence[dict[str, Any]], curves: Sequence[Curves]) -> None:
        """Continue from the state of each configuration, in whichever pack it was or alone, with the curves it had.

        Raises:
            ValueError: the configurations have not learned equally many batches.
        """
        gradients = [state["gradient_evaluations"] for state in states]
        self._gradients = [each - gradients[0] for each in gradients]
        self.protocol.load_state_dict(self._joined(states, curves), self._after(curves))

    def _joined(self, states: Sequence[dict[str, Any]], curves: Sequence[Curves]) -> dict[str, Any]:
        positions = [state["position"] for state in states]
        if len(set(positions)) > 1:
            raise ValueError(f"the trials of a pack must be at the same datapoint of the stream (got {positions})")
        divergences = [state.get("lost", each.diverged) for state, each in zip(states, curves, strict=True)]
        of_seeds = {
            "tasks_over": [over for state in states for over in state["tasks_over"]],
            "lost": [batch for each in divergences for batch in each],
        }
        if len(states) == 1:
            return {**states[0], **of_seeds}
        learner = self.protocol.learner.state_of_replicates([state["learner"] for state in states])
        return {**states[0], **of_seeds, "learner": learner}

    def _after(self, curves: Sequence[Curves]) -> Curves:
        """Set the curves of the configurations; returns those of the protocol, which has measured nothing after."""
        self.curves = [self._with_totals(each) for each in curves]
        return self._none_so_far(curves[0].batches, [batch for each in curves for batch in each.diverged])

    def _none_so_far(self, batches: int, diverged: list[int]) -> Curves:
        seeds = list(self.protocol.learner.setting.seeds)
        return self._with_totals(Curves(seeds, batches, diverged=list(diverged)))

    def _with_totals(self, curves: Curves) -> Curves:
        curves.total_batches, curves.total_tasks = self._totals
        return curves

    def _rows(self, member: int) -> slice:
        return slice(member * len(self._seeds), (member + 1) * len(self._seeds))


def _at_first_batch(values: Mapping[str, float], part: Curves) -> dict[str, np.ndarray]:
    """Curves [R, J] with these values at the first batch of a part, unless the seed has diverged by then."""
    at_first = np.arange(part.batches - part.first_batch) == 0
    measured = np.array([not 0 <= batch <= part.first_batch for batch in part.diverged])
    return {name: np.where(measured[:, None] & at_first, value, np.nan) for name, value in values.items()}


def assemble(
    store: TaskStore,
    learner: str,
    options: Sequence[dict[str, Any]],
    seeds: list[int],
    schedule: Schedule | None = None,
    source: StreamSource | None = None,
    **others: Any,
) -> Pack:
    """The pack of new learners on the streams of a store.

    Args:
        options: of each configuration.
        others: as the other arguments, those of `orchestrator.protocol.online.assemble`.

    Raises:
        ValueError, OrchestratorError: a learner refuses its options or its stream, or the configurations differ in an
            option that is not `changeable`.
    """
    kind, count = registry.learner_class(learner), len(options)
    each = [kind.options_class(**values) for values in options]
    packed = packed_options(each, len(seeds), kind.changeable)
    values = {option.name: getattr(packed, option.name) for option in fields(packed)}
    source = source or StoreSource(store, seeds, schedule or Sequential())
    repeated = RepeatedSource(source, count) if count > 1 else source
    return Pack(online.assemble(store, learner, values, seeds * count, source=repeated, **others), each)
