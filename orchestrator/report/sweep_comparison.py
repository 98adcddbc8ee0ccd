"""The comparison of two sweeps, or of a sweep with its earlier version, paired by configuration and by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from orchestrator.errors import OrchestratorError, fault
from orchestrator.report import comparison
from orchestrator.report.comparison import ComparisonRow, PairedDifference
from orchestrator.report.tables import Column, decimals
from orchestrator.tracking.reader import ConfigurationRuns, SweepRuns

EARLIER, CURRENT = "earlier", "current"
_STREAM = ("stream", "batch_size")


@dataclass(frozen=True)
class SweepPart:
    """The configurations of one sweep, or of one version of it.

    Attributes:
        name: by which its configurations are marked.
        sweep: its runs.
        curves: the points of their curves.
    """

    name: str
    sweep: SweepRuns
    curves: pd.DataFrame


@dataclass(frozen=True)
class ConfigurationPair:
    """Two configurations that are compared.

    Attributes:
        label: the label that both have, or both labels.
        first: of the first sweep.
        second: of the second sweep.
        difference: second minus first, on their common seeds; p is corrected by Holm for all pairs.
        options: the parameters that differ, as text.
    """

    label: str
    first: ComparisonRow
    second: ComparisonRow
    difference: PairedDifference
    options: str


def versions(sweep: SweepRuns, curves: pd.DataFrame) -> tuple[SweepPart, SweepPart]:
    """The earlier configurations of a sweep, the newest one of each label, and those of its current version.

    Raises:
        OrchestratorError: the sweep has no earlier version.
    """
    earlier = {runs.label: runs for runs in sweep.configurations if runs.removed}
    if not earlier:
        rule = "the sweep has no configurations of an earlier version"
        raise OrchestratorError(fault("--earlier", "", rule, sweep.name, "change an option, and run it again"))
    present = tuple(replace(runs, removed=False) for runs in earlier.values())
    current = tuple(runs for runs in sweep.configurations if not runs.removed)
    return _part(EARLIER, sweep, present, curves), _part(CURRENT, sweep, current, curves)


def merged(first: SweepPart, second: SweepPart) -> SweepPart:
    """Both as one sweep, with the name of its part after the label of each configuration.

    Raises:
        OrchestratorError: their objectives differ.
    """
    objectives = [(part.sweep.objective, part.sweep.mode) for part in (first, second)]
    if objectives[0] != objectives[1]:
        got = " and ".join(objective for objective, _ in objectives)
        raise OrchestratorError(fault("report", "", "both sweeps must have the same objective", got))
    configurations, curves = [], []
    for part in (first, second):
        configurations += [
            replace(runs, hash=f"{part.name}: {runs.hash}", label=f"{runs.label} ({part.name})")
            for runs in part.sweep.configurations
        ]
        points = part.curves
        hashes, labels = part.name + ": " + points.configuration, points.label + f" ({part.name})"
        curves.append(points.assign(configuration=hashes, label=labels))
    name = f"{first.name} and {second.name}"
    if first.sweep.run_id == second.sweep.run_id:
        name = f"{first.sweep.name}, {name}"
    sweep = replace(second.sweep, name=name, configurations=tuple(configurations), charts="")
    return SweepPart(name, sweep, pd.concat(curves, ignore_index=True))


def pairs(first: SweepPart, second: SweepPart, rows: Sequence[ComparisonRow]) -> list[ConfigurationPair]:
    """The configurations with equal labels; of a learner without such ones, the best of each sweep.

    Configurations that were removed from their sweep are left out.

    Args:
        first: the first sweep.
        second: the second sweep.
        rows: the comparison of the merged sweeps, the best first.
    """
    by_part = []
    for part in (first, second):
        labels = {f"{part.name}: {runs.hash}": runs.label for runs in part.sweep.configurations}
        present = [row for row in rows if row.configuration.hash in labels and not row.configuration.removed]
        by_part.append({labels[row.configuration.hash]: row for row in present if row.values})
    one, other = by_part
    matches = [(label, row, other[label]) for label, row in one.items() if label in other]
    matched = {row.configuration.learner for _, row, _ in matches}
    for learner in dict.fromkeys(row.configuration.learner for row in one.values()):
        best = [
            next(((label, row) for label, row in part.items() if row.configuration.learner == learner), None)
            for part in by_part
        ]
        if learner not in matched and best[0] is not None and best[1] is not None:
            matches.append((f"{best[0][0]} → {best[1][0]}", best[0][1], best[1][1]))
    differences = [comparison.difference(later.values, earlier.values) for _, earlier, later in matches]
    tested = [index for index, each in enumerate(differences) if each.p is not None]
    corrected = comparison.holm([p for each in differences if (p := each.p) is not None])
    for index, p in zip(tested, corrected, strict=True):
        differences[index] = replace(differences[index], p=p)
    return [
        ConfigurationPair(label, earlier, later, each, _changes(earlier.configuration, later.configuration))
        for (label, earlier, later), each in zip(matches, differences, strict=True)
    ]


def columns(first: SweepPart, second: SweepPart, matches: Sequence[ConfigurationPair]) -> list[Column]:
    """The table of the pairs, one or more."""
    sides = [(match.first.objective, match.second.objective) for match in matches]
    before, after = zip(*sides, strict=True)
    digits = decimals((each.mean for each in (*before, *after)), 3)
    apart = tuple(match.difference.interval if match.difference.interval.n else None for match in matches)
    return [
        Column("configuration", tuple(match.label for match in matches)),
        Column(first.name, before, "interval", digits),
        Column(second.name, after, "interval", digits),
        Column(f"{second.name} − {first.name}", apart, "difference", digits),
        Column("p", tuple(match.difference.p for match in matches), "p", 3),
        Column("common seeds", tuple(float(match.difference.interval.n) for match in matches), "number"),
        Column("different options", tuple(match.options for match in matches)),
    ]


def numbers(matches: Sequence[ConfigurationPair]) -> pd.DataFrame:
    """The pairs as a table of numbers: the content of `pairs.csv`."""
    return pd.DataFrame(
        {
            "label": match.label,
            "first": match.first.configuration.run_id,
            "second": match.second.configuration.run_id,
            **comparison.interval_numbers("first", match.first.objective),
            **comparison.interval_numbers("second", match.second.objective),
            **comparison.interval_numbers("difference", match.difference.interval),
            "difference_n": match.difference.interval.n,
            "difference_p_holm": match.difference.p,
            "different_options": match.options,
        }
        for match in matches
    )


def warning(matches: Sequence[ConfigurationPair]) -> str:
    """A line if a pair's seeds have different datapoints, else empty."""
    for match in matches:
        one, other = (side.configuration.parameters for side in (match.first, match.second))
        keys = sorted(key for key in one.keys() | other.keys() if key.startswith(_STREAM))
        if any(one.get(key) != other.get(key) for key in keys):
            return "The streams differ: equal seeds have different datapoints, and are paired all the same."
    return ""


def _part(name: str, sweep: SweepRuns, configurations: Sequence[ConfigurationRuns], curves: pd.DataFrame) -> SweepPart:
    hashes = [runs.hash for runs in configurations]
    part = replace(sweep, configurations=tuple(configurations))
    return SweepPart(name, part, curves[curves.configuration.isin(hashes)])


def _changes(one: ConfigurationRuns, other: ConfigurationRuns) -> str:
    """The parameters that differ, as `alpha1: 0.01 → 0.001`."""
    keys = dict.fromkeys([*one.parameters, *other.parameters])
    changes = ((key, one.parameters.get(key, "–"), other.parameters.get(key, "–")) for key in keys)
    return ", ".join(f"{key}: {before} → {after}" for key, before, after in changes if before != after)
