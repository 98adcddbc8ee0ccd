"""A population at work: rounds at whose ends members copy one another, and the file that says who copied whom.

All members go to the end of a round and pause there; then `pbt.decide` says who copies whom, which is written down
before anybody goes on. A decision depends on the members' curves and the search's seed alone: should the file be lost,
it is made again from the chunk files, and is the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import Population, Trial, generator
from orchestrator.search.population import decisions
from orchestrator.search.population.segments import Leg, Stage
from orchestrator.storage import atomic
from orchestrator.storage.journal import Journal

COPIED_FROM = "hyper/copied_from"
"""The curve that has a point where a member copied another: that one's number in the population."""


@dataclass(frozen=True)
class Round:
    """What was decided `at` this batch. ``fitness``: of each member that came so far, None if it was lost. ``failed``:
    key → reason, of those that failed and are out of the population."""

    at: int
    fitness: dict[str, float | None]
    copies: tuple[decisions.Copy, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)


class Rounds:
    """The members of one population that are to be run, round by round.

    Args:
        population: who is in it.
        total_batches: of the whole stream.
        metric: of the sweep's objective.
        journal: of the sweep; the schedule is written into its folder.
        ended: keys of the trials that are not to be run (again).
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
        self.decided = _known(self.path, population)
        self._lost: dict[str, str] = {}  # failed in the round that is under way
        self._arrived: dict[str, float] = {}
        self._waiting: deque[str] = deque()
        self._take_up()

    @property
    def failed(self) -> dict[str, str]:
        """Key → reason, of the members that are out of the population."""
        return {key: reason for round_ in self.decided for key, reason in round_.failed.items()}

    @property
    def waits(self) -> bool:
        """Whether somebody will go on once those that run have come to the end of the round."""
        return len(self.decided) < len(self._ends) - 1 and any(
            key not in self._arrived and key not in self._lost for key in self._alive()
        )

    def next(self) -> Trial | None:
        """A member that can go on now."""
        return self._members[self._waiting.popleft()] if self._waiting else None

    def again(self, key: str) -> None:
        """A member is to go on once more: it did not come to the end of the round."""
        self._waiting.appendleft(key)

    def leg(self, key: str) -> Leg:
        """What a member is told when it goes on."""
        stages = self._stages(key)
        return Leg(tuple(stages), self._ends[len(self.decided)], self._metric, self._ways(stages))

    def arrived(self, key: str, fitness: float) -> bool:
        """A member is at the end of the round. Returns whether it was the last one, and all can go on."""
        self._arrived[key] = fitness
        return self._close()

    def lost(self, key: str, reason: str) -> bool:
        """A member has failed for good. Returns whether the others were waiting for it, and can go on."""
        self._lost[key] = reason
        return self._close()

    def values(self, key: str) -> decisions.Values:
        """What a member has now."""
        return self._stages(key)[-1].values

    def _alive(self) -> list[str]:
        out = self.failed
        return [key for key in self._members if key not in out]

    def _number(self, key: str) -> int:
        return list(self._members).index(key) + 1

    def _stages(self, key: str) -> list[Stage]:
        values = self.population.values(self._members[key])
        stages = [Stage(0, values, "", _marks(values))]
        for round_ in self.decided:
            copy = next((copy for copy in round_.copies if copy.member == key), None)
            if copy is None:
                stages.append(Stage(round_.at, values, "", _marks(values)))
            else:
                values = copy.after
                marks = _marks(values) | {COPIED_FROM: float(self._number(copy.donor))}
                stages.append(Stage(round_.at, values, copy.donor, marks))
        return stages

    def _ways(self, stages: Iterable[Stage]) -> dict[str, tuple[Stage, ...]]:
        """The ways of those who were copied in these stages, of those whom they had copied, and so on."""
        ways: dict[str, tuple[Stage, ...]] = {}
        waiting = [stage.donor for stage in stages if stage.donor]
        while waiting:
            if (key := waiting.pop()) not in ways:
                ways[key] = tuple(
                    replace(stage, marks=None) for stage in self._stages(key) if stage.donor or not stage.at
                )
                waiting += [stage.donor for stage in ways[key] if stage.donor]
        return ways

    def _take_up(self) -> None:
        """Find every member where its newest chunk file says it is, and go on from there."""
        from orchestrator.storage import trial_files  # torch comes with it

        curves = {}
        for key, member in self._members.items():
            chunk = trial_files.newest(member.folder(self._journal.root))
            if chunk is not None:
                curves[key] = chunk.curves
        while True:
            start, stop = (self.decided[-1].at if self.decided else 0), self._ends[len(self.decided)]
            for key in self._alive():
                if key in curves and curves[key].batches >= stop:
                    self._arrived[key] = decisions.fitness(curves[key], self._metric, start, stop)
            last = len(self.decided) == len(self._ends) - 1
            done = self._ended if last else self._arrived
            self._waiting = deque(key for key in self._alive() if key not in done)
            if not self._close():
                return

    def _close(self) -> bool:
        """Decide, if the round is over and another one follows it."""
        alive = self._alive()
        over = all(key in self._arrived or key in self._lost for key in alive)
        if not over or len(self.decided) == len(self._ends) - 1 or not self._arrived:
            return False
        number = len(self.decided)
        by_member = {key: self._arrived[key] for key in alive if key in self._arrived}
        copies = decisions.decide(
            by_member,
            {key: self.values(key) for key in by_member},
            self.population.spaces,
            self.population.options,
            lambda key: generator(self.population.seed, ["pbt", self.population.hash, number, key]),
        )
        fitness = {key: value if math.isfinite(value) else None for key, value in by_member.items()}
        self.decided.append(Round(self._ends[number], fitness, tuple(copies), self._lost))
        self._write()
        self._lost, self._arrived = {}, {}
        self._waiting = deque(self._alive())
        return True

    def _write(self) -> None:
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
            "rounds": [asdict(round_) for round_ in self.decided],
        }
        self._journal.keep(self.path, atomic.with_digest(content))


def set_aside(root: Path, population: Population) -> str:
    """Rename a population's schedule if it is damaged: it can be had from the chunk files. Returns a line about it."""
    path = population.file(root)
    try:
        _read(path, population)
        return ""
    except atomic.DAMAGE as error:
        line = f"{path}: damaged ({atomic.reason(error)}); the decisions are recomputed from the chunk files"
        return f"{line}; {atomic.quarantine(path)}"


def write_schedules(journal: Journal, total_batches: int, metric: str, ended: Collection[str]) -> None:
    """Make the schedules again that are not there, of populations that have come to their end."""
    for population in journal.plan.populations:
        if not population.file(journal.root).exists():
            Rounds(population, total_batches, metric, journal, ended)


def failed_before(root: Path, population: Population) -> dict[str, str]:
    """Key → reason, of the members that are out of a population already."""
    rounds = _known(population.file(root), population)
    return {key: reason for round_ in rounds for key, reason in round_.failed.items()}


def _marks(values: Mapping[str, Any]) -> dict[str, float]:
    return {f"hyper/{key}": float(value) for key, value in values.items()}


def _read(path: Path, population: Population) -> list[Round]:
    """The rounds in a schedule; none if there is no file."""
    try:
        content = atomic.without_digest(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if content["population"] != population.hash:
        raise ValueError(f"population must be {population.hash} (got {content['population']})")
    return [
        Round(each["at"], each["fitness"], tuple(decisions.Copy(**copy) for copy in each["copies"]), each["failed"])
        for each in content["rounds"]
    ]


def _known(path: Path, population: Population) -> list[Round]:
    """The rounds in a schedule; none if there is no whole one, for they can be had from the chunk files."""
    try:
        return _read(path, population)
    except atomic.DAMAGE:
        return []
