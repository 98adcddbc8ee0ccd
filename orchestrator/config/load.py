"""Reads and checks a sweep; everything that is wrong is reported together, each fault with its path."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from orchestrator.config.cross_checks import check_budget, check_options, check_scheduler, check_size, stream_facts
from orchestrator.config.schedulers import SCHEDULERS, Scheduler
from orchestrator.config.schema import Document, LearnerSpec, Sweep
from orchestrator.config.search_space import is_space, read_space
from orchestrator.config.strict_yaml import MAX_DEPTH, overridden, read_yaml
from orchestrator.errors import ConfigError
from streams import recipes
from streams.errors import MASK, Faults
from streams.options import explain, from_options, model_of, unknown_name
from streams.recipe import Recipe
from streams.schedule import HeldBack, Schedule, schedules

if TYPE_CHECKING:
    from learners.base import StreamFacts

T = TypeVar("T")


def default_file() -> Path:
    """The quickstart's configuration file, which is part of the package."""
    return Path(str(files("tune_configs") / "quickstart.yaml"))


def load_sweep(file: Path | str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep; `key=value` overrides the YAML, which overrides the defaults.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    path = default_file() if file is None else Path(file)
    name = str(path) if file is not None else f"tune_configs/{path.name}"
    return check_sweep(overridden(read_yaml(path, name), overrides), name, str(path.parent.absolute()))


def check_sweep(document: Mapping[str, Any], file: str = "configuration", folder: str | None = None) -> Sweep:
    """Check a sweep given as nested mappings, as `load_sweep` reads them from YAML.

    Args:
        document: the content of the file.
        file: what messages call it.
        folder: where modules of the user's own learners are searched, besides Python's path.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    faults = Faults(file)
    _check_values(document, faults)
    faults.check(ConfigError)
    top: Document | None = None
    try:
        top = Document.model_validate(dict(document))
    except ValidationError as error:
        explain(error, faults, Document)
    stream, learners = document.get("stream"), document.get("learners")
    recipe = store = schedule = facts = None
    if isinstance(stream, Mapping):
        recipe, store, schedule = _stream(dict(stream), faults.at("stream"))
    if top is not None and recipe is not None and schedule is not None:
        facts = stream_facts(schedule, top.batch_size, recipe.classes)
    specs = []
    if folder is not None:
        from learners import registry  # imports torch

        registry.search_also(folder)
    for index, entry in enumerate(learners if isinstance(learners, list) else ()):
        if isinstance(entry, Mapping):
            algorithm = top.search.algorithm if top else "random"
            specs.append(_learner(dict(entry), algorithm, schedule, facts, faults.at("learners", index)))
    if top is not None and recipe is not None:
        _check_network(top, recipe, faults)
    scheduler = None
    if top is not None:
        check_budget(top, faults)
        scheduler = _scheduler(top.search.scheduler, faults.at("search.scheduler"))
    faults.check(ConfigError)
    assert top is not None and recipe is not None and schedule is not None and scheduler is not None
    valid = tuple(spec for spec in specs if spec is not None)
    check_scheduler(scheduler, top.search, valid, faults)
    check_size(top, valid, faults)
    faults.check(ConfigError)
    own_modules = any("." in spec.name for spec in valid)
    return Sweep(file, document, top, recipe, store, schedule, valid, scheduler, folder if own_modules else None)


def _stream(entry: dict[str, Any], faults: Faults) -> tuple[Recipe | None, str | None, Schedule | None]:
    name, store = entry.pop("name", None), entry.pop("store", None)
    order, held_back = entry.pop("schedule", {"name": "sequential"}), entry.pop("held_back", 0)
    if store is not None and not isinstance(store, str):
        faults.add("store", "must be a folder or an address", store)
    schedule = _schedule(order, faults.at("schedule"))
    if not isinstance(held_back, int) or isinstance(held_back, bool) or held_back < 0:
        faults.add("held_back", "must be a whole number of at least 0", held_back)
    elif held_back and schedule is not None:
        schedule = HeldBack(schedule, held_back)
    recipe: Recipe | None = None
    if (kind := _named(name, recipes(), faults)) is not None:
        recipe = from_options(kind, entry, faults, ["name", "store", "schedule", "held_back"])
    if recipe is not None and (lines := recipe.check()):
        faults.extend(f"{faults.file}: {faults.key}.{line.removeprefix(f'{recipe.name}.')}" for line in lines)
        recipe = None
    return recipe, store, schedule


def _schedule(entry: Any, faults: Faults) -> Schedule | None:
    if not isinstance(entry, Mapping):
        faults.add("", "must be a mapping with a name", entry)
        return None
    return _named_options(entry, schedules(), faults)


def _scheduler(entry: Any, faults: Faults) -> Scheduler | None:
    if not isinstance(entry, str | Mapping):
        faults.add("", "must be a name, or a mapping with a name", entry)
        return None
    return _named_options({"name": entry} if isinstance(entry, str) else entry, SCHEDULERS, faults)


def _named_options(entry: Mapping[str, Any], choices: Mapping[str, type[T]], faults: Faults) -> T | None:
    """The options of the dataclass that `name` selects; None, and a fault, if the name or an option is wrong."""
    options = dict(entry)
    kind = _named(options.pop("name", None), choices, faults)
    return None if kind is None else from_options(kind, options, faults, ["name"])


def _named(name: Any, choices: Mapping[str, T], faults: Faults) -> T | None:
    if name is None:
        faults.add("name", "must be given", remedy=f"one of {', '.join(sorted(choices))}")
    elif not isinstance(name, str) or name not in choices:
        unknown_name("name", name, choices, faults)
    else:
        return choices[name]
    return None


def _learner(
    entry: dict[str, Any], algorithm: str, schedule: Schedule | None, stream: StreamFacts | None, faults: Faults
) -> LearnerSpec | None:
    from learners import registry  # imports torch

    name = entry.pop("name", None)
    if isinstance(name, str) and "." in name:  # a module of the user's own
        try:
            registry.learner_class(name)
        except ValueError as error:
            faults.add("name", str(error))
            return None
    elif _named(name, {name: name for name in registry.names()}, faults) is None:
        return None
    learner = registry.learner_class(name)
    if learner.needs_boundaries and schedule is not None and not schedule.has_boundaries:
        rule = f"needs task boundaries, which the schedule {schedule.name} has not"
        faults.add("name", rule, name, "use the schedule sequential, or leave it out")
    model = model_of(learner.options_class)
    searched = {key for key, value in entry.items() if is_space(value) and key in model.model_fields}
    fixed = {key: value for key, value in entry.items() if key not in searched}  # with keys that are unknown
    spaces = {}
    for key in (key for key in entry if key in searched):
        space = read_space(entry[key], model, key, faults)
        if space is not None:
            spaces[key] = space
            if algorithm == "grid" and not space.is_grid:
                remedy = "write {grid: [...]}, or set search.algorithm to random"
                faults.add(key, "grid search needs a list of values", entry[key], remedy)
    try:
        values = model.model_validate(fixed)
    except ValidationError as error:
        explain(error, faults, model, ["name"])
        return None
    resolved = {key: getattr(values, key) for key in model.model_fields if key not in spaces}
    spec = LearnerSpec(name, resolved, spaces)
    if stream is not None:
        check_options(spec, stream, faults)
    return spec


def _check_network(top: Document, recipe: Recipe, faults: Faults) -> None:
    from learners.networks.build import default_for

    network = default_for(recipe.images_per_datapoint)
    if top.network not in (None, network):
        rule = f"must be {network} for a stream of {recipe.images_per_datapoint} image(s) a datapoint"
        faults.add("network", rule, top.network)


def _check_values(value: Any, faults: Faults, depth: int = 0) -> None:
    """Add a fault for every value that no name, path or line of output can hold, and every key that is not text."""
    if isinstance(value, str):
        if "://" in value and MASK in value:
            rule = f"{MASK} stands for user, password or key, which the sweep's folder does not hold"
            faults.add("", rule, value, f"give the whole address: {faults.key}=...")
        bad = sorted({char for char in value if unicodedata.category(char) in ("Cc", "Cs")})
        if bad:
            rule = f"must not contain control characters or broken Unicode ({', '.join(map(ascii, bad))})"
            faults.add("", rule, ascii(value))
    elif isinstance(value, int) and abs(value) >= 2**63:
        faults.add("", "must be a whole number between -2^63 and 2^63", f"a number of {value.bit_length()} bits")
    elif depth == MAX_DEPTH and isinstance(value, Mapping | list):
        faults.add("", f"must have at most {MAX_DEPTH} lists and mappings inside each other")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if isinstance(key, str):
                _check_values(key, faults)
                _check_values(part, faults.at(ascii(key)[1:-1]), depth + 1)
            else:
                faults.add("", "a key must be text", key, "write it in quotes")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _check_values(part, faults.at(index), depth + 1)
