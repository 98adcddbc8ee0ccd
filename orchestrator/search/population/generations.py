"""The generations of a population: members train one, pause, and then the exploit step decides who copies whom.

Each decision is written to a file before any member continues. It depends on the members' curves and on the seed of the
search alone: if the file is missing or damaged, the decisions are recomputed from the chunk files, with equal results.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import Population, Trial, generator
from orchestrator.search.population import decisions
from orchestrator.search.population.segments import Segment, SegmentPlan
from orchestrator.storage import atomic, chunk_files
from orchestrator.storage.journal import Journal

COPIED_FROM = "hyper/copied_from"
"""The curve with a point wherever a member copied another: the number of that member in the population."""


@dataclass(frozen=True)
class Generation:
    """A completed generation and its exploit step.

    Attributes:
        at: the batch at which it ended.
        fitness: key → fitness of each member that completed it, None where it is not finite.
        copies: who copied whom.
        failed: key → reason, of the members that failed in it and left the population.
    """

    at: int
    fitness: dict[str, float | None]
    copies: tuple[decisions.Copy, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"copies": [copy.to_json() for copy in self.copies]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Generation:
        copies = tuple(decisions.Copy.from_json(copy) for copy in content["copies"])
        return cls(content["at"], content["fitness"], copies, content["failed"])


class Generations:
    """The members of one population that are to be run, generation by generation.

    Args:
        population: the members.
        total_batches: of the whole stream.
        metric: of the sweep's objective.
        journal: of the sweep; the population's file is written into its folder.
        ended: keys of the trials that are not to be run again.

    Attributes:
        path: the population's file, with the completed generations.
        interval: batches of a generation.
        completed: the completed generations in order.
        waiting: the members that can train now, in order.
    """

    def __init__(
        self, population: Population, total_batches: int, metric: str, journal: Journal, ended: Collection[str] = ()
    ) -> None:
        self.population, self._metric = population, metric
        self.path = population.file(journal.root)
        self._journal, self._ended = journal, ended
        self._members = {member.key: member for member in population.members}
        size = population.members[0].configuration.batch_size
        interval = population.options.interval
        self.interval = -(-total_batches // 10) if interval is None else -(-interval // size)
        self._ends = [*range(self.interval, total_batches, self.interval), total_batches]
        self.completed = _read_intact(self.path, population)
        self._failed_now: dict[str, str] = {}  # in the current generation: key → reason
        self._paused: dict[str, float] = {}  # at the end of the current generation: key → fitness
        self.waiting: deque[Trial] = deque()
        self._resume()

    @property
    def failed(self) -> dict[str, str]:
        """Key → reason, of the members that left the population in a completed generation."""
        return {key: reason for generation in self.completed for key, reason in generation.failed.items()}

    @property
    def waits(self) -> bool:
        """Whether members will continue after those that run have paused."""
        return len(self.completed) < len(self._ends) - 1 and any(
            key not in self._paused and key not in self._failed_now for key in self._alive()
        )

    def segment_plan(self, key: str) -> SegmentPlan:
        """The segments of a member, up to the end of the current generation."""
        return SegmentPlan(tuple(self._segments(key)), self._ends[len(self.completed)], self._metric)

    def pause(self, key: str, fitness: float) -> bool:
        """Record the fitness of a member at the end of the generation; true if it was the last one to pause."""
        self._paused[key] = fitness
        return self._complete()

    def fail(self, key: str, reason: str) -> bool:
        """Record a member that leaves the population; true if the others were waiting for it."""
        self._failed_now[key] = reason
        return self._complete()

    def values(self, key: str) -> decisions.Values:
        """The present values of a member."""
        return self._segments(key)[-1].values

    def _alive(self) -> list[str]:
        failed = self.failed
        return [key for key in self._members if key not in failed]

    def _number(self, key: str) -> int:
        return list(self._members).index(key) + 1

    def _segments(self, key: str) -> list[Segment]:
        values = self.population.values(self._members[key])
        segments = [Segment(0, values, "", _marks(values))]
        for generation in self.completed:
            copy = next((copy for copy in generation.copies if copy.member == key), None)
            if copy is None:
                segments.append(Segment(generation.at, values, "", _marks(values)))
            else:
                values = copy.after
                marks = _marks(values) | {COPIED_FROM: float(self._number(copy.parent))}
                segments.append(Segment(generation.at, values, copy.parent, marks))
        return segments

    def _resume(self) -> None:
        """Complete the generations that all members have reached the end of, by their newest chunk files."""
        curves = {}
        for key, member in self._members.items():
            chunk = chunk_files.newest(member.folder(self._journal.root))
            if chunk is not None:
                curves[key] = chunk.curves
        while True:
            start, stop = (self.completed[-1].at if self.completed else 0), self._ends[len(self.completed)]
            for key in self._alive():
                if key in curves and curves[key].batches >= stop:
                    self._paused[key] = decisions.fitness(curves[key], self._metric, start, stop)
            is_last = len(self.completed) == len(self._ends) - 1
            done = self._ended if is_last else self._paused
            self.waiting = deque(self._members[key] for key in self._alive() if key not in done)
            if not self._complete():
                return

    def _complete(self) -> bool:
        """Decide who copies whom, if all members have paused and a generation follows."""
        alive = self._alive()
        all_paused = all(key in self._paused or key in self._failed_now for key in alive)
        if not all_paused or len(self.completed) == len(self._ends) - 1 or not self._paused:
            return False
        number = len(self.completed)
        by_member = {key: self._paused[key] for key in alive if key in self._paused}
        copies = decisions.decide(
            by_member,
            {key: self.values(key) for key in by_member},
            self.population.spaces,
            self.population.options,
            lambda key: generator(self.population.seed, ["pbt", self.population.hash, number, key]),
        )
        fitness = {key: value if math.isfinite(value) else None for key, value in by_member.items()}
        completed = [*self.completed, Generation(self._ends[number], fitness, tuple(copies), self._failed_now)]
        self._write(completed)  # first: if this fails, the generation stays undecided
        self.completed, self._failed_now, self._paused = completed, {}, {}
        self.waiting = deque(self._members[key] for key in self._alive())
        return True

    def _write(self, completed: Sequence[Generation]) -> None:
        content = {
            "population": self.population.hash,
            "label": self.population.label,
            "metric": self._metric,
            "interval_batches": self.interval,
            "batch_size": self.population.members[0].configuration.batch_size,
            "options": asdict(self.population.options),
            "members": [
                {
                    "key": key,
                    "number": self._number(key),
                    "configuration": member.configuration.hash,
                    "label": member.configuration.label,
                    "values": self.population.values(member),
                }
                for key, member in self._members.items()
            ],
            "rounds": [generation.to_json() for generation in completed],
        }
        self._journal.keep(self.path, atomic.with_digest(content))


def quarantine_if_damaged(root: Path, population: Population) -> str:
    """Quarantine a population's file if it is damaged, and return a line about it, else an empty string."""
    path = population.file(root)
    try:
        _read(path, population)
        return ""
    except atomic.DAMAGE as error:
        line = f"{path}: damaged ({atomic.reason(error)}); the decisions are recomputed from the chunk files"
        return f"{line}; {atomic.quarantine(path)}"


def write_missing_files(journal: Journal, total_batches: int, metric: str, ended: Collection[str]) -> None:
    """Recompute the missing files of populations whose members have all ended."""
    for population in journal.plan.populations:
        if not population.file(journal.root).exists():
            Generations(population, total_batches, metric, journal, ended)


def failed_members(root: Path, population: Population) -> dict[str, str]:
    """Key → reason, of the members that have left a population."""
    completed = _read_intact(population.file(root), population)
    return {key: reason for generation in completed for key, reason in generation.failed.items()}


def _marks(values: Mapping[str, Any]) -> dict[str, float]:
    return {f"hyper/{key}": float(value) for key, value in values.items()}


def _read(path: Path, population: Population) -> list[Generation]:
    """The completed generations in a population's file; none if the file does not exist."""
    try:
        content = atomic.without_digest(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if content["population"] != population.hash:
        raise ValueError(f"population must be {population.hash} (got {content['population']})")
    return [Generation.from_json(each) for each in content["rounds"]]


def _read_intact(path: Path, population: Population) -> list[Generation]:
    """The completed generations in a population's file; none if the file is missing or damaged."""
    try:
        return _read(path, population)
    except atomic.DAMAGE:
        return []
