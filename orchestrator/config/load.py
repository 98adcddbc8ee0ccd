"""From what was read to a checked sweep; everything that is wrong is told at once, with its path."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.config.constraints import check_budget, check_options, check_scheduler, facts
from orchestrator.config.option_models import model_of, rules
from orchestrator.config.schedulers import SCHEDULERS, Scheduler
from orchestrator.config.schema import Document, LearnerSpec, Search, Sweep
from orchestrator.config.search_space import is_space, read_space
from orchestrator.config.strict_yaml import overridden, read_yaml
from orchestrator.errors import ConfigError, fault
from streams import recipes
from streams.recipe import Recipe
from streams.schedule import HeldBack, Schedule, schedules

if TYPE_CHECKING:
    from learners.base import StreamFacts


def default_file() -> Path:
    """The quickstart that comes with the package."""
    return Path(str(files("tune_configs") / "quickstart.yaml"))


def load_sweep(file: Path | str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep. Precedence: defaults < YAML < `key=value`.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    path = default_file() if file is None else Path(file)
    name = str(path) if file is not None else f"tune_configs/{path.name}"
    return check_sweep(overridden(read_yaml(path, name), overrides), name)


def check_sweep(document: Mapping[str, Any], file: str = "configuration") -> Sweep:
    """Check a sweep given as nested mappings, as `load_sweep` reads them from YAML.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    faults = _unprintable(document, file)
    if faults:
        raise ConfigError(*faults)
    top: Document | None = None
    try:
        top = Document.model_validate(dict(document))
    except ValidationError as error:
        faults += rules(error, file, "", Document)
    stream, learners = document.get("stream"), document.get("learners")
    recipe = store = schedule = None
    if isinstance(stream, Mapping):
        recipe, store, schedule = _stream(dict(stream), file, faults)
    specs = []
    if isinstance(learners, list):
        algorithm = top.search.algorithm if top else "random"
        known = None
        if top is not None and recipe is not None and schedule is not None:
            known = facts(schedule, top.batch_size, recipe.classes)
        for index, entry in enumerate(learners):
            if isinstance(entry, Mapping):
                where = f"learners[{index}]"
                specs.append(_learner(dict(entry), where, file, algorithm, schedule, known, faults))
    if top is not None and recipe is not None:
        _network(top, recipe, file, faults)
    if top is not None:
        faults += check_budget(top.budget, top.price, top.resources.gpus, file)
    scheduler = None if top is None else _scheduler(top.search, file, faults)
    if faults or top is None or recipe is None or schedule is None or scheduler is None:
        raise ConfigError(*dict.fromkeys(faults))
    found = tuple(spec for spec in specs if spec is not None)
    faults += check_scheduler(scheduler, top.search, found, file)
    if faults:
        raise ConfigError(*faults)
    return Sweep(file, document, top, recipe, store, schedule, found, scheduler)


def _stream(entry: dict[str, Any], file: str, faults: list[str]) -> tuple[Recipe | None, str | None, Schedule | None]:
    name, store = entry.pop("name", None), entry.pop("store", None)
    planned, held_back = entry.pop("schedule", {"name": "sequential"}), entry.pop("held_back", 0)
    if store is not None and not isinstance(store, str):
        faults.append(fault(file, "stream.store", "must be a folder or an address", store))
    schedule = _schedule(planned, file, faults)
    if not isinstance(held_back, int) or isinstance(held_back, bool) or held_back < 0:
        faults.append(fault(file, "stream.held_back", "must be a whole number of at least 0", held_back))
    elif held_back and schedule is not None:
        schedule = HeldBack(schedule, held_back)
    kind = _named(name, recipes(), file, "stream.name", faults)
    beside = ["name", "store", "schedule", "held_back"]
    recipe: Recipe | None = None if kind is None else _made(kind, entry, beside, file, "stream", faults)
    if recipe is not None and (own_faults := recipe.check()):
        faults += [f"{file}: stream.{line.removeprefix(f'{recipe.name}.')}" for line in own_faults]
        recipe = None
    return recipe, store, schedule


def _schedule(entry: Any, file: str, faults: list[str]) -> Schedule | None:
    if not isinstance(entry, Mapping):
        faults.append(fault(file, "stream.schedule", "must be a mapping with a name", entry))
        return None
    options = dict(entry)
    kind = _named(options.pop("name", None), schedules(), file, "stream.schedule.name", faults)
    made: Schedule | None = None if kind is None else _made(kind, options, ["name"], file, "stream.schedule", faults)
    return made


def _scheduler(search: Search, file: str, faults: list[str]) -> Scheduler | None:
    given = search.scheduler
    where = "search.scheduler"
    if not isinstance(given, str | Mapping):
        faults.append(fault(file, where, "must be a name, or a mapping with a name", given))
        return None
    options = {"name": given} if isinstance(given, str) else dict(given)
    kind = _named(options.pop("name", None), SCHEDULERS, file, f"{where}.name", faults)
    made: Scheduler | None = None if kind is None else _made(kind, options, ["name"], file, where, faults)
    return made


def _made(kind: Any, options: dict[str, Any], beside: list[str], file: str, where: str, faults: list[str]) -> Any:
    """An object of a frozen dataclass of options; None, and lines in `faults`, if an option is wrong."""
    model = model_of(kind)
    try:
        values = model.model_validate(options)
    except ValidationError as error:
        faults += rules(error, file, where, model, beside)
        return None
    return kind(**{key: getattr(values, key) for key in model.model_fields})


def _learner(
    entry: dict[str, Any],
    where: str,
    file: str,
    algorithm: str,
    schedule: Schedule | None,
    stream: StreamFacts | None,
    faults: list[str],
) -> LearnerSpec | None:
    from learners import registry  # torch comes with it: not before it is needed

    name = entry.pop("name", None)
    if isinstance(name, str) and "." in name:  # a module of the user's own
        try:
            registry.learner_class(name)
        except ValueError as error:
            faults.append(fault(file, f"{where}.name", str(error)))
            return None
    elif _named(name, {known: known for known in registry.names()}, file, f"{where}.name", faults) is None:
        return None
    learner = registry.learner_class(name)
    if learner.needs_boundaries and schedule is not None and not schedule.has_boundaries:
        rule = f"needs task boundaries, which the schedule {schedule.name} has not"
        faults.append(fault(file, f"{where}.name", rule, name, "use the schedule sequential, or leave it out"))
    model = model_of(learner.options_class)
    fixed = {key: value for key, value in entry.items() if not is_space(value)}
    spaces = {}
    for key in [key for key in entry if key not in fixed]:
        if key not in model.model_fields:
            fixed[key] = entry[key]  # told below, as any other unknown key
            continue
        space = read_space(entry[key], model, key, f"{where}.{key}", file, faults)
        if space is not None:
            spaces[key] = space
            if algorithm == "grid" and not space.is_grid:
                remedy = "write {grid: [...]}, or set search.algorithm to random"
                faults.append(fault(file, f"{where}.{key}", "grid search needs a list of values", entry[key], remedy))
    try:
        values = model.model_validate(fixed)
    except ValidationError as error:
        faults += rules(error, file, where, model, ["name"])
        return None
    resolved = {key: getattr(values, key) for key in model.model_fields if key not in spaces}
    spec = LearnerSpec(name, resolved, spaces)
    if stream is not None:
        faults += check_options(spec, where, file, stream)
    return spec


def _network(top: Document, recipe: Recipe, file: str, faults: list[str]) -> None:
    from learners.networks.build import default_for  # imports torch

    fitting = default_for(recipe.images_per_datapoint)
    if top.network not in (None, fitting):
        rule = f"must be {fitting} for a stream of {recipe.images_per_datapoint} image(s) a datapoint"
        faults.append(fault(file, "network", rule, top.network))


def _named(name: Any, known: Mapping[str, Any], file: str, where: str, faults: list[str]) -> Any:
    if name is None:
        faults.append(fault(file, where, "must be given", remedy=f"one of {', '.join(sorted(known))}"))
    elif not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        remedy = f"did you mean {near[0]}?" if near else ""
        faults.append(fault(file, where, f"must be one of {', '.join(sorted(known))}", name, remedy))
    else:
        return known[name]
    return None


def _unprintable(value: Any, file: str, where: str = "") -> list[str]:
    """A line for every text in a document that can stand in no name, path or line of output."""
    if isinstance(value, str):
        bad = sorted({char for char in value if unicodedata.category(char) in ("Cc", "Cs")})
        rule = f"must not contain control characters or broken Unicode ({', '.join(map(ascii, bad))})"
        return [fault(file, where, rule, ascii(value))] if bad else []
    if isinstance(value, Mapping):
        parts = [
            (f"{where}.{ascii(key)[1:-1]}" if where else ascii(key)[1:-1], part)
            for key, part in value.items()
            if isinstance(key, str)
        ]
    elif isinstance(value, list):
        parts = [(f"{where}[{index}]", part) for index, part in enumerate(value)]
    else:
        return []
    return [line for path, part in parts for line in _unprintable(part, file, path)]
