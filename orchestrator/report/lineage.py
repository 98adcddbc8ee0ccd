"""Who copied whom in a sweep's populations, as MLflow has it: for the report.

A member of a population is no constant configuration: its values changed, and after a copy it goes on from another's
state. What its curve and its learner came from is told here.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import POPULATION_PREFIX
from orchestrator.storage.atomic import without_digest
from orchestrator.tracking.reader import SweepRuns

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """From datapoint `start` on, a state learned as that member, with these values."""

    start: int
    member: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A member's values over time: from batch `starts[i]` on `values[i]`, after it copied `donors[i]` (a label; "" at
    the first). ``stop``: the batches that it has seen."""

    label: str
    configuration: str
    starts: tuple[int, ...]
    values: tuple[dict[str, Any], ...]
    donors: tuple[str, ...]
    stop: int


@dataclass(frozen=True)
class Descent:
    """A population's schedule; see `orchestrator.search.population.rounds` for what is in it."""

    content: Mapping[str, Any]

    @property
    def label(self) -> str:
        return str(self.content["label"])

    @property
    def copies(self) -> int:
        return sum(len(round_["copies"]) for round_ in self.content["rounds"])

    def table(self) -> list[tuple[str, ...]]:
        """The head, and one row for every copy, in the order of time."""
        labels = {member["key"]: member["label"] for member in self.content["members"]}
        names = sorted(self.content["members"][0]["values"])
        head = ("after datapoints", "member", "its error", "copied", "the error of that", *names)
        rows = []
        for round_ in self.content["rounds"]:
            for copy in round_["copies"]:
                own, other = (_error(round_["fitness"][copy[who]]) for who in ("member", "donor"))
                changes = (f"{_value(copy['before'][name])} → {_value(copy['after'][name])}" for name in names)
                at = str(round_["at"] * self.content["batch_size"])
                rows.append((at, labels[copy["member"]], own, labels[copy["donor"]], other, *changes))
        return [head, *rows]

    def of(self, configuration: str) -> list[Part] | None:
        """What the state that a member (by its configuration's hash) has at the end came from, first to last; None for
        one of another population."""
        members = {member["key"]: member for member in self.content["members"]}
        key = next((key for key, member in members.items() if member["configuration"] == configuration), None)
        if key is None:
            return None
        parts: list[Part] = []
        rounds = self.content["rounds"]
        for number in range(len(rounds), -1, -1):
            at = rounds[number - 1]["at"] * self.content["batch_size"] if number else 0
            part = Part(at, members[key]["label"], self._values(key, number))
            if parts and (parts[0].member, parts[0].values) == (part.member, part.values):
                parts[0] = part
            else:
                parts.insert(0, part)
            if number and (copy := _copy(rounds[number - 1], key)):
                key = copy["donor"]
        return parts

    def ways(self, reached: Mapping[str, int]) -> list[Way]:
        """The way of each member. `reached`: configuration's hash → batches seen, of those where that is known."""
        labels = {member["key"]: member["label"] for member in self.content["members"]}
        made = []
        for member in self.content["members"]:
            starts, values, donors = [0], [dict(member["values"])], [""]
            for round_ in self.content["rounds"]:
                if copy := _copy(round_, member["key"]):
                    starts.append(round_["at"])
                    values.append(dict(copy["after"]))
                    donors.append(labels[copy["donor"]])
            last = self.content["rounds"][-1]["at"] if self.content["rounds"] else 0
            own = member["configuration"]
            stop = max(reached.get(own, last), starts[-1])
            made.append(Way(member["label"], own, tuple(starts), tuple(values), tuple(donors), stop))
        return made

    def _values(self, key: str, rounds: int) -> dict[str, Any]:
        """What a member had after so many rounds."""
        found = next(member["values"] for member in self.content["members"] if member["key"] == key)
        for round_ in self.content["rounds"][:rounds]:
            if copy := _copy(round_, key):
                found = copy["after"]
        return dict(found)


def read(sweep: SweepRuns) -> list[Descent]:
    """The schedules of a sweep's populations, as far as they are there and can be read."""
    from mlflow.exceptions import MlflowException

    wanted = {of.population for of in sweep.configurations if of.population}
    found = []
    for name in sorted(wanted):
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(sweep.client.download_artifacts(sweep.run_id, f"{POPULATION_PREFIX}{name}.json", folder))
                found.append(Descent(without_digest(path.read_text(encoding="utf-8"))))
        except (MlflowException, OSError):
            continue  # no round is over yet, or artifacts are out of reach
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            of = f"{POPULATION_PREFIX}{name}.json of the sweep (run {sweep.run_id})"
            again = f"python -m orchestrator.sweep --resume {shlex.quote(sweep.name)} writes it again"
            logger.warning("%s: damaged (%s); who copied whom is left out; %s", of, error, again)
    return found


def explained(descents: Sequence[Descent], configuration: str, label: str) -> str:
    """What is to be known of a member that is called the best; empty for a configuration of no population."""
    parts = next((parts for each in descents if (parts := each.of(configuration)) is not None), None)
    if parts is None:
        return ""
    if len(parts) == 1:
        return f"{label} is a member of a population that copied nobody: its values were {_told(parts[0])} all along"
    lines = [f"{label} is no constant configuration: its values changed on the way. Its learner came to be like this:"]
    for part in parts:
        lines.append(f"  from datapoint {part.start}: {part.member}, {_told(part)}")
    if any(part.member != label for part in parts):
        lines.append("  (its curve is its own throughout: before a copy, that of the state which it gave up)")
    return "\n".join(lines)


def _told(part: Part) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in sorted(part.values.items()))


def _copy(round_: Mapping[str, Any], key: str) -> Any:
    return next((copy for copy in round_["copies"] if copy["member"] == key), None)


def _error(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _value(value: Any) -> str:
    return f"{value:.4g}"
