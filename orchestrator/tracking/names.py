"""Names of runs in MLflow, and configurations and seeds as text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.plan.identity import fields
from orchestrator.plan.plan import Configuration

PARENT = "mlflow.parentRunId"
INITIAL = "_at_first"
INTERNAL = "foml_internal."
"""Prefix of the tags that only this package reads, which sorts after `foml.`."""
_EARLIER = {
    f"foml.{name}": f"{INTERNAL}{name}"
    for name in (
        *("run_key", "configuration", "complete_for", "identity", "identity_json", "sweep_hash", "store"),
        *("position", "population", "seed_fates", "hindsight_epochs"),
        *(f"sha256.{table}.parquet" for table in ("curves", "test_error", "hindsight")),
    )
}
RUN_KEY, CONFIGURATION = f"{INTERNAL}run_key", f"{INTERNAL}configuration"
"""Tags: what a run contains, by which a resumed sweep finds it; and the hash of its configuration."""
_LONGEST_NAME = 250
"""Characters of a run's name that every database of MLflow holds."""


def earlier_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The internal tags that a run of an earlier version has under other names only.

    >>> earlier_tags({"foml.kind": "seed", "foml.run_key": "a/b", "foml.store": "1", "foml_internal.store": "2"})
    {'foml_internal.run_key': 'a/b'}
    """
    return {_EARLIER[key]: value for key, value in tags.items() if key in _EARLIER and _EARLIER[key] not in tags}


def run_name(label: str, seed: int | None = None) -> str:
    """The name of a run of a configuration or of a seed, whose label is shortened if it is too long.

    >>> run_name("foml K=5", 0)
    'foml K=5 · seed 0'
    """
    end = "" if seed is None else f" · seed {seed}"
    length = _LONGEST_NAME - len(end)
    return (label if len(label) <= length else label[: length - 1] + "…") + end


def sweep_key(name: str) -> str:
    """The run key of a sweep: its name, with separators quoted."""
    return f"sweep:{quote(name, safe=' ')}"


def charts_page(experiment_id: str, sweep_run: str, lowest_first: bool = True) -> str:
    """The page of MLflow's UI, below the server's address, that overlays the curves of a sweep's configurations.

    The runs are ordered by objective, the best first.

    Args:
        experiment_id: of the experiment.
        sweep_run: the id of the sweep's own run, which is the parent of the configurations' runs.
        lowest_first: whether the lowest objective is the best.
    """
    query = {
        "workflowType": "machine_learning",
        "searchFilter": f"tags.\"{PARENT}\" = '{sweep_run}'",
        "orderByKey": "metrics.`objective`",
        "orderByAsc": str(lowest_first).lower(),
        "compareRunsMode": "CHART",
    }
    return f"#/experiments/{experiment_id}/runs?{urlencode(query, quote_via=quote)}"


def parameters(configuration: Configuration) -> dict[str, str]:
    """A configuration as MLflow's parameters: every option, the network and the stream.

    Seeds are a tag, since parameters cannot change and a sweep can be extended by seeds. For an option that a
    population changes during training the parameter is the initial value, and says so in its name.
    """
    stream = {key: value for key, value in configuration.stream.items() if key != "name"}
    options = {
        key + (INITIAL if key in configuration.mutated else ""): value for key, value in configuration.options.items()
    }
    values = {
        **options,
        "learner": configuration.learner,
        "network": configuration.network,
        "batch_size": configuration.batch_size,
        "stream": configuration.stream["name"],
        **_flat(stream, "stream."),
        **({"start": configuration.start} if configuration.start else {}),
        **({} if configuration.evaluate_past is None else {"evaluate_past": configuration.evaluate_past}),
    }
    return {key: to_text(value) for key, value in values.items()}


def sweep_parameters(sweep: Mapping[str, Any]) -> dict[str, str]:
    """What all runs of a resolved sweep share (`plan.identity.fields`) as MLflow's parameters.

    Seeds and search, which a later start can change, are tags: `sweep_tags`.
    """
    shared = fields(sweep) | {"stream": {"name": None, **(sweep.get("stream") or {})}}
    flat = {"stream": shared["stream"].pop("name"), **_flat(shared, "")}
    return {key: to_text(value) for key, value in flat.items() if key != "name" and value is not None}


def sweep_tags(sweep: Mapping[str, Any]) -> dict[str, str]:
    """The seeds and the search of a resolved sweep, as tags of its run."""
    return {"foml.seeds": listed(sweep.get("seeds", ())), "foml.search": to_text(sweep.get("search", {}))}


def to_text(value: Any) -> str:
    """A value as a parameter's text, the inverse of `from_text`.

    >>> [to_text(value) for value in (0.01, True, None, "adam", "5")]
    ['0.01', 'true', 'null', 'adam', '"5"']
    """
    if isinstance(value, str) and from_text(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str) -> Any:
    """The value of a parameter's text.

    >>> [from_text(text) for text in ("0.01", "true", "adam", '"5"')]
    [0.01, True, 'adam', '5']
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def listed(seeds: Iterable[int]) -> str:
    """Seeds as a tag's text, ascending, with consecutive ones as a range; the inverse of `unlisted`.

    >>> listed([3, 0, 1, 2, 7])
    '0-3,7'
    """
    spans: list[list[int]] = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1][1:] = [seed]
        else:
            spans.append([seed])
    return ",".join("-".join(map(str, span)) for span in spans)


def unlisted(text: str) -> list[int]:
    """The seeds of a text of `listed`.

    >>> unlisted("0-3,7")
    [0, 1, 2, 3, 7]
    """
    spans = [span.split("-") for span in text.split(",") if span]
    return [seed for span in spans for seed in range(int(span[0]), int(span[-1]) + 1)]


def fates_as_text(fates: Iterable[tuple[int, str, int | None, int | None]]) -> str:
    """How the seeds of a configuration ended, as a tag's text, the inverse of `fates_from_text`.

    Args:
        fates: of each seed: the seed, its status, the batch at which it diverged, that at which it was stopped.

    >>> fates_as_text([(0, "FINISHED", None, None), (1, "FINISHED", 25, None), (2, "FINISHED", None, None)])
    '[["0,2", "FINISHED", null, null], ["1", "FINISHED", 25, null]]'
    """
    groups: dict[tuple[str, int | None, int | None], list[int]] = {}
    for seed, status, diverged, stopped in fates:
        groups.setdefault((status, diverged, stopped), []).append(seed)
    return json.dumps([[listed(seeds), *fate] for fate, seeds in groups.items()])


def fates_from_text(text: str) -> dict[int, tuple[str, int | None, int | None]]:
    """Seed → status, the batch at which it diverged, the batch at which it was stopped.

    Of a text that is cut off, those that are complete.

    >>> fates_from_text('[["0,2", "FINISHED", null, null], ["1", "FINISHED", 25, null]]')[1]
    ('FINISHED', 25, None)
    >>> list(fates_from_text('[["0,2", "FINISHED", null, null], ["1", "FINI…'))
    [0, 2]
    """
    if not text.endswith("]]"):
        complete, separator, _ = text.rpartition("], [")
        text = f"{complete}]]" if separator else "[]"
    return {
        seed: (status, diverged, stopped)
        for seeds, status, diverged, stopped in json.loads(text)
        for seed in unlisted(seeds)
    }
