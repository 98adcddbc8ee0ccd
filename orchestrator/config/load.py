"""Reads and checks a sweep; everything that is wrong is reported together, each fault with its path."""

from __future__ import annotations

import inspect
import json
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from orchestrator.config.cross_checks import (
    check_budget,
    check_options,
    check_scheduler,
    check_size,
    stream_facts,
)
from orchestrator.config.schedulers import SCHEDULERS, Scheduler
from orchestrator.config.schema import Document, LearnerSpec, Start, Sweep
from orchestrator.config.search_space import is_space, read_space
from orchestrator.config.strict_yaml import overridden, read_yaml, with_grids
from orchestrator.errors import ConfigError, fault
from streams import recipes
from streams.errors import MASK, Faults
from streams.options import explain, from_options, model_of, nearest, unknown_name
from streams.recipe import Recipe
from streams.schedule import HeldBack, Schedule, schedules
from streams.yaml_values import MAX_DEPTH

if TYPE_CHECKING:
    from learners.base import Learner, StreamFacts

T = TypeVar("T")


def ready_sweeps() -> dict[str, Path]:
    """The sweeps that are part of this package: name → file."""
    folder = Path(str(files("tune_configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def default_file() -> Path:
    """The quickstart's configuration file, which is part of the package."""
    return ready_sweeps()["quickstart"]


def load_sweep(file: Path | str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep; `key=value` overrides the YAML, which overrides the defaults.

    Args:
        file: a YAML file, or the name of a ready sweep where no file has that name; the quickstart if None.
        overrides: `key=value` arguments.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    path, name = located(file)
    return check_sweep(overridden(read_yaml(path, name), overrides), name, str(path.parent.absolute()))


def located(file: Path | str | None) -> tuple[Path, str]:
    """The path of a sweep's file, and what messages call it; see `load_sweep`."""
    if file is None:
        return default_file(), "tune_configs/quickstart.yaml"
    path, name = Path(file), str(file)
    if path.name != name or not name or path.suffix or path.is_file():
        return path, name
    ready = ready_sweeps()
    if name in ready:
        return ready[name], f"tune_configs/{name}.yaml"
    near = nearest(name, list(ready))
    remedy = f"did you mean {near}?" if near else ""
    raise ConfigError(fault(name, "", f"must be a YAML file or a ready sweep ({', '.join(ready)})", remedy=remedy))


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
    if folder is not None:
        from learners import registry  # imports torch

        registry.search_also(folder)
    document = with_grids(document, _list_options)
    stream, learners = document.get("stream"), document.get("learners")
    recipe = store = schedule = facts = None
    if isinstance(stream, Mapping):
        recipe, store, schedule = _stream(dict(stream), faults.at("stream"))
    if top is not None and recipe is not None and schedule is not None:
        facts = stream_facts(schedule, top.batch_size, recipe.classes)
    specs = []
    for index, entry in enumerate(learners if isinstance(learners, list) else ()):
        if isinstance(entry, Mapping):
            algorithm = top.search.algorithm if top else "random"
            specs.append(_learner(dict(entry), algorithm, schedule, facts, faults.at("learners", index)))
    scheduler = network = None
    if top is not None and recipe is not None:
        network = _network(top.network, recipe.images_per_datapoint, faults.at("network"))
    if top is not None:
        check_budget(top, faults)
        scheduler = _scheduler(top.search.scheduler, faults.at("search.scheduler"))
    faults.check(ConfigError)
    assert top is not None and recipe is not None and schedule is not None and scheduler is not None
    valid = tuple(spec for spec in specs if spec is not None)
    check_scheduler(scheduler, top.search, top.objective, valid, faults)
    check_size(top, valid, faults)
    faults.check(ConfigError)
    assert network is not None
    sweep = Sweep(file, document, top, recipe, store, schedule, valid, scheduler, network)
    return replace(sweep, folder=folder) if sweep.has_own_modules else sweep


def _list_options(entry: Mapping[str, Any]) -> set[str]:
    """The options of a learner that take a list."""
    from learners import registry  # imports torch

    with suppress(Exception):  # a wrong name or none, or a class without options, is a fault later
        model = model_of(registry.learner_class(entry.get("name")).options_class)
        return {key for key, item in model.model_fields.items() if _takes_list(item.annotation)}
    return set()


def _takes_list(annotation: Any) -> bool:
    """Whether a value of this type may be a list; YAML has no tuples."""
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, list):
        return True
    return any(_takes_list(part) for part in get_args(annotation)) if kind in (Union, UnionType) else False


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
    if recipe is not None and (lines := recipe.check() + ([] if store is not None else recipe.check_locations())):
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
            kind = registry.learner_class(name)
        except ValueError as error:
            faults.add("name", str(error))
            return None
        try:
            model_of(kind.options_class)
        except Exception as error:  # there is none, it is no dataclass, or pydantic does not know a type
            reason = " ".join(str(error).split())
            rule = "must have an options_class, a dataclass of numbers, text, true or false, and lists of these"
            faults.add("name", f"{rule} ({reason:.200})", name)
            return None
    elif _named(name, {name: name for name in registry.names()}, faults) is None:
        return None
    learner = registry.learner_class(name)
    if learner.needs_boundaries and schedule is not None and not schedule.has_boundaries:
        rule = f"needs task boundaries, which the schedule {schedule.name} does not have"
        faults.add("name", rule, name, "use the schedule sequential, or leave it out")
    model = model_of(learner.options_class)
    entry = _with_preset(name, entry, learner, faults)
    start = entry.pop("start", None) if "start" not in model.model_fields else None
    if start is not None and not (isinstance(start, str) and start):
        faults.add("start", "must be a checkpoint file that ends in .pt, or the id of a run", start)
    elif start is not None and not learner.can_start:
        faults.add("start", f"{name} cannot start from the weights of a learner", start, "leave it out")
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
        # One value of each space, since an option of a user's own learner may have no default.
        values = model.model_validate(fixed | {key: space.values[0] for key, space in spaces.items()})
    except ValidationError as error:
        explain(error, faults, model, ["name", "preset", "start"], faulty=searched)
        return None
    resolved = {key: getattr(values, key) for key in model.model_fields if key not in spaces}
    resolved = registry.without_additions(name, resolved)
    spec = LearnerSpec(name, resolved, spaces, Start(start) if isinstance(start, str) else None)
    if stream is not None:
        check_options(spec, stream, faults)
    return spec


def _with_preset(name: str, entry: dict[str, Any], learner: type[Learner], faults: Faults) -> dict[str, Any]:
    """The options with those of the `preset` that are not among them."""
    if "preset" not in entry or "preset" in model_of(learner.options_class).model_fields:
        return entry
    preset = entry.pop("preset")
    if not learner.presets:
        faults.add("preset", f"{name} has no presets", preset, "leave it out")
    elif not isinstance(preset, str) or preset not in learner.presets:
        unknown_name("preset", preset, learner.presets, faults)
    else:
        return {**learner.presets[preset], **entry}
    return entry


def _network(entry: str | Mapping[str, Any] | None, images_per_datapoint: int, faults: Faults) -> str | None:
    """The description of the network; None, and a fault, if it is wrong."""
    from learners.networks import build  # imports torch

    names = build.names_for(images_per_datapoint)
    options = {"name": names[0] if entry is None else entry} if not isinstance(entry, Mapping) else dict(entry)
    if "class" in options:
        return _own_network(options, faults)
    name = options.pop("name", names[0])
    if name not in names:
        rule = f"must be one of {', '.join(names)} for a stream of {images_per_datapoint} image(s) a datapoint"
        faults.add("name" if isinstance(entry, Mapping) else "", rule, name, "or a mapping with class: module.Class")
        return None
    kind = build.OPTIONS.get(name, build.InitialOptions)
    values = from_options(kind, options, faults, ["name"])
    return None if values is None else build.described({"name": name, **asdict(values)})


def _own_network(options: dict[str, Any], faults: Faults) -> str | None:
    from learners.networks import build  # imports torch

    path = options.pop("class")
    initial = from_options(build.InitialOptions, {k: options.pop(k) for k in ("init",) if k in options}, faults)
    try:
        kind = build.module_class({"class": path})
        inspect.signature(kind).bind((1, 1, 1), 2, **options)
    except (ValueError, TypeError) as error:
        faults.add("", f"class {path}: {error}", remedy="it is called with image_shape, classes and the options")
        return None
    wrong = {key: value for key, value in options.items() if not _is_plain(value)}
    for key, value in wrong.items():
        faults.add(key, "must be a number, text, true or false, a list or a mapping", repr(value))
    if initial is None or wrong:
        return None
    return build.described({"class": path, **options, **asdict(initial)})


def _is_plain(value: Any) -> bool:
    """Whether the description of a network can hold a value, such as none of YAML's dates."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


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
