"""From YAML and `key=value` words to a validated sweep; everything that is wrong is told at once, with its path."""

from __future__ import annotations

import copy
import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.budget import Budget, Price, check_budget
from orchestrator.errors import ConfigError, fault
from orchestrator.schedulers import SCHEDULERS, Scheduler, check_scheduler
from orchestrator.schemas import model_of, rules
from orchestrator.spaces import Space, is_space, read_space
from streams import recipes
from streams.recipe import Recipe
from streams.schedule import HeldBack, Schedule, schedules

COMMAND_LINE = "command line"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Objective(_Part):
    """What a sweep minimises: a mean over seeds."""

    metric: Literal["cumulative_error", "validation_error", "online_error"] = "cumulative_error"
    mode: Literal["min"] = "min"


class Search(_Part):
    """How configurations are found: grids are crossed, and every crossing is drawn `samples` times.

    ``algorithm``: `random` draws all at once; `optuna` draws each with what the trials before it came to (TPE, on the
    mean of the objective over seeds); `grid` draws nothing. ``scheduler``: a name, or a mapping with options; see
    `orchestrator.schedulers`.
    """

    samples: int = Field(default=1, ge=1)
    algorithm: Literal["random", "grid", "optuna"] = "random"
    seed: int = Field(default=0, ge=0)
    scheduler: Any = "none"


class Resources(_Part):
    """What one learner actor gets. Torch uses as many threads as it has CPUs, and at least one."""

    cpus: float = Field(default=1, gt=0)
    gpus: float = Field(default=0, ge=0)


class Tracking(_Part):
    """Where MLflow keeps runs; the experiment is the sweep's name if none is given."""

    uri: str = Field(default="sqlite:///mlflow.db", min_length=1)
    experiment: str | None = None
    diagnostics_every: int = Field(default=10, ge=1, description="batches between two points of a learner's diagnostic")


class _Document(_Part):
    """The top level of a sweep's YAML. Learners and stream are checked against their own dataclasses afterwards."""

    name: str = Field(min_length=1, max_length=200)
    stream: dict[str, Any]
    learners: list[dict[str, Any]] = Field(min_length=1)
    seeds: int | list[int]
    network: str | None = None
    batch_size: int = Field(default=10, ge=1)
    objective: Objective = Objective()
    search: Search = Search()
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    chunk: int = Field(default=40, ge=1, description="batches between two checkpoints")
    retries: int = Field(default=3, ge=0, description="times that a trial is started again after it died")
    max_failures: int | None = Field(default=None, ge=0, description="trials that may fail before the sweep stops")
    storage: str = Field(default="results", min_length=1)
    keep_checkpoints: str | int = Field(default="last", description="last, all (one a task), or one every n tasks")
    price: Price | None = None
    budget: Budget | None = None

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: int | list[int]) -> int | list[int]:
        if isinstance(seeds, int):
            if seeds < 1:
                raise ValueError("must be at least 1, or a list of seeds")
            return seeds
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("must be a list of different numbers of at least 0, and not empty")
        return seeds

    @field_validator("keep_checkpoints")
    @classmethod
    def _keep_checkpoints(cls, keep: str | int) -> str | int:
        if keep not in ("last", "all") and (isinstance(keep, str) or keep < 1):
            raise ValueError("must be last, all, or every so many tasks: a whole number of at least 1")
        return keep


@dataclass(frozen=True)
class LearnerSpec:
    """A learner with its fixed options and the spaces of the others."""

    name: str
    fixed: dict[str, Any]
    spaces: dict[str, Space]

    @property
    def drawn(self) -> dict[str, Space]:
        """The spaces that values are drawn from; grids are crossed."""
        return {key: space for key, space in self.spaces.items() if not space.is_grid}


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked. `file` is what messages call its source, `given` what was in it."""

    file: str
    given: Mapping[str, Any]
    document: _Document
    recipe: Recipe
    store: str | None
    schedule: Schedule
    learners: tuple[LearnerSpec, ...]
    scheduler: Scheduler

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def experiment(self) -> str:
        """MLflow's experiment."""
        return self.document.tracking.experiment or self.name

    @property
    def seeds(self) -> list[int]:
        seeds = self.document.seeds
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    @property
    def threads(self) -> int:
        """What torch uses in one learner actor."""
        return max(1, int(self.document.resources.cpus))

    @property
    def network(self) -> str:
        chosen = {1: "rainbow", 2: "siamese"}[self.recipe.images_per_datapoint]
        return self.document.network or chosen


def default_file() -> Path:
    """The quickstart that comes with the package."""
    return Path(str(files("tune_configs") / "quickstart.yaml"))


def load(file: Path | str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep. Precedence: defaults < YAML < `key=value`.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    path = default_file() if file is None else Path(file)
    name = str(path) if file is not None else f"tune_configs/{path.name}"
    return check(overridden(_read_yaml(path, name), overrides), name)


def overridden(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of the document, changed by `a.b[0].c=value` words.

    Raises:
        ConfigError: one line for every word that does not fit.
    """
    changed = copy.deepcopy(dict(document))
    faults = [problem for word in words if (problem := _override(changed, word))]
    if faults:
        raise ConfigError(*faults)
    return changed


def check(document: Mapping[str, Any], file: str = "configuration") -> Sweep:
    """Check a sweep given as nested mappings, as `load` gets it from YAML.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    faults = _unprintable(document, file)
    if faults:
        raise ConfigError(*faults)
    top: _Document | None = None
    try:
        top = _Document.model_validate(dict(document))
    except ValidationError as error:
        faults += rules(error, file, "", _Document)
    stream, learners = document.get("stream"), document.get("learners")
    recipe = store = schedule = None
    if isinstance(stream, Mapping):
        recipe, store, schedule = _stream(dict(stream), file, faults)
    specs = []
    if isinstance(learners, list):
        algorithm = top.search.algorithm if top else "random"
        for index, entry in enumerate(learners):
            if isinstance(entry, Mapping):
                specs.append(_learner(dict(entry), f"learners[{index}]", file, algorithm, schedule, faults))
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
    wanted = entry.get("pretrain_tasks", 0)
    held_back = schedule.tasks if isinstance(schedule, HeldBack) else 0
    if isinstance(wanted, int) and wanted > held_back:
        rule = f"must be at most stream.held_back, {held_back}"
        faults.append(fault(file, f"{where}.pretrain_tasks", rule, wanted))
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
    return LearnerSpec(name, resolved, spaces)


def _network(top: _Document, recipe: Recipe, file: str, faults: list[str]) -> None:
    fitting = {1: "rainbow", 2: "siamese"}[recipe.images_per_datapoint]
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


class StrictLoader(yaml.SafeLoader):
    """YAML as people mean it: `1e-3` is a number, and a key written twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key} is written twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _read_yaml(path: Path, name: str) -> dict[str, Any]:
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(fault(name, "", f"must be a readable YAML file ({reason})")) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(fault(name, line, f"must be YAML: {getattr(error, 'problem', error)}")) from error
    if not isinstance(document, dict):
        raise ConfigError(fault(name, "", "must hold keys and values", type(document).__name__))
    return document


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def _override(document: dict[str, Any], word: str) -> str | None:
    """Write one `a.b[0].c=value` into the document; the fault's line if that cannot be."""
    key, equals, text = word.partition("=")
    steps = [int(index) if index else name for name, index in _STEP.findall(key)]
    if not equals or not steps:
        return fault(COMMAND_LINE, word, "must be written key=value, such as seeds=3 or learners[0].K=5")
    try:
        value = parsed(text)
    except yaml.YAMLError:
        return fault(COMMAND_LINE, key, "must be a YAML value", text)
    place: Any = document
    for done, (step, following) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        if isinstance(step, int) != isinstance(place, list) or (isinstance(step, int) and step >= len(place)):
            so_far = _dotted(steps[:done]) or "the sweep"
            return fault(COMMAND_LINE, key, f"{so_far} has no such part", _dotted(steps[: done + 1]))
        if following is None:
            place[step] = value
        elif isinstance(step, int):
            place = place[step]
        else:
            if not isinstance(place.get(step), dict | list):
                place[step] = {}
            place = place[step]
    return None


def parsed(text: str) -> Any:
    """A value as it is read behind `key=`: YAML. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=StrictLoader)


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


def _dotted(steps: Sequence[int | str]) -> str:
    out = ""
    for step in steps:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out
