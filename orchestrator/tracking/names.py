"""Names of runs in MLflow, and configurations and seeds as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from orchestrator.plan.plan import Configuration

INITIAL = "_at_first"


def sweep_key(name: str) -> str:
    """The run key of a sweep: its name, with separators quoted."""
    return f"sweep:{quote(name, safe=' ')}"


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
    }
    return {key: to_text(value) for key, value in values.items()}


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
