"""The lineages of a sweep's populations, read from MLflow: whose state each member copied, and its values over time.

A population member is not a constant configuration: its values change, and after a copy it continues from its parent's
state.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.plan.plan import POPULATION_PREFIX
from orchestrator.storage.atomic import without_digest
from orchestrator.tracking.reader import ArtifactError, ConfigurationRuns, SweepRuns, artifact_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ancestor:
    """A stage of the training that led to a member's final state.

    Attributes:
        start: the first datapoint of the stage.
        member: the label of the member that learned it.
        values: the values that it was learned with.
    """

    start: int
    member: str
    values: dict[str, Any]


@dataclass(frozen=True)
class MemberHistory:
    """A member's values over time.

    Attributes:
        label: the member's.
        configuration: the hash of its configuration.
        starts: the batches at which its values changed.
        values: the values from each of these batches on.
        parents: the label of the member that was copied at each of these batches; "" at the first.
        stop: the number of batches that the member has seen.
    """

    label: str
    configuration: str
    starts: tuple[int, ...]
    values: tuple[dict[str, Any], ...]
    parents: tuple[str, ...]
    stop: int


@dataclass(frozen=True)
class Lineage:
    """The lineage of a population; `orchestrator.search.population.generations` describes its content."""

    content: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The population's."""
        return str(self.content["label"])

    def table(self) -> list[tuple[str, ...]]:
        """The head, and one row for each copy, in order of time."""
        names = sorted(self.content["members"][0]["values"])
        rows = [("after datapoints", "member", "its error", "copied", "the error of that", *names)]
        for generation in self.content["rounds"]:
            for copy in generation["copies"]:
                member, parent = self._members[copy["member"]], self._members[copy["donor"]]
                errors = [_error(generation["fitness"][each["key"]]) for each in (member, parent)]
                changes = (f"{_value(copy['before'][name])} → {_value(copy['after'][name])}" for name in names)
                start = str(generation["at"] * self.content["batch_size"])
                rows.append((start, member["label"], errors[0], parent["label"], errors[1], *changes))
        return rows

    def ancestors(self, configuration: str) -> list[Ancestor] | None:
        """The stages that led to a member's final state, first to last.

        Args:
            configuration: the hash of the member's configuration.

        Returns:
            The stages; None if the population has no such member.
        """
        members = self._members
        stages = {key: [Ancestor(0, member["label"], dict(member["values"]))] for key, member in members.items()}
        for generation in self.content["rounds"]:
            start = generation["at"] * self.content["batch_size"]
            stages |= {  # of the parents' stages before any copy of this generation
                copy["member"]: [
                    *stages[copy["donor"]],
                    Ancestor(start, members[copy["member"]]["label"], dict(copy["after"])),
                ]
                for copy in generation["copies"]
            }
        return next((stages[key] for key, each in members.items() if each["configuration"] == configuration), None)

    def histories(self, batches: Mapping[str, int]) -> list[MemberHistory]:
        """The history of each member; `batches`: configuration's hash → batches seen, where that is known."""
        generations, histories = self.content["rounds"], []
        for key, member in self._members.items():
            copies = [(each["at"], copy) for each in generations for copy in each["copies"] if copy["member"] == key]
            starts = (0, *(at for at, _ in copies))
            values = (dict(member["values"]), *(dict(copy["after"]) for _, copy in copies))
            parents = ("", *(self._members[copy["donor"]]["label"] for _, copy in copies))
            last = generations[-1]["at"] if generations else 0
            stop = max(batches.get(member["configuration"], last), starts[-1])
            histories.append(MemberHistory(member["label"], member["configuration"], starts, values, parents, stop))
        return histories

    @property
    def _members(self) -> dict[str, Any]:
        return {member["key"]: member for member in self.content["members"]}


def read(sweep: SweepRuns) -> list[Lineage]:
    """The lineages of a sweep's populations; one that is damaged is logged and left out."""
    lineages = []
    for name in sorted({runs.population for runs in sweep.configurations if runs.population}):
        file = f"{POPULATION_PREFIX}{name}.json"
        try:
            lineages.append(Lineage(without_digest(artifact_text(sweep.client, sweep.run_id, file))))
        except ArtifactError:
            continue  # before the end of the first generation, or MLflow's artifacts are out of reach
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            where = f"{file} of the sweep (run {sweep.run_id})"
            remedy = f"python -m orchestrator.sweep --resume {shlex.quote(sweep.name)} writes it again"
            logger.warning("%s: damaged (%s); the lineage is left out of the report; %s", where, error, remedy)
    return lineages


def explanation(lineages: Sequence[Lineage], configuration: ConfigurationRuns) -> str:
    """The lineage of the best configuration, as text; empty for a configuration of no population."""
    label, histories = configuration.label, (lineage.ancestors(configuration.hash) for lineage in lineages)
    stages = next(filter(None, histories), None)
    if stages is None:
        return ""
    if len(stages) == 1:
        return (
            f"{label} is a population member that copied no other: its values were {_assignments(stages[0])} throughout"
        )
    lines = [
        f"{label} is not a constant configuration: its values changed during training. Its learner is the result of:"
    ]
    lines += [f"  from datapoint {stage.start}: {stage.member}, {_assignments(stage)}" for stage in stages]
    if any(stage.member != label for stage in stages):
        lines.append("  (its curve is its own throughout: before a copy, that of the state which it gave up)")
    return "\n".join(lines)


def _assignments(stage: Ancestor) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in sorted(stage.values.items()))


def _error(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _value(value: Any) -> str:
    return f"{value:.4g}"
