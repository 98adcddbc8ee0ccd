"""The result of a finished sweep, kept in its folder to answer the same command again within a second or two.

It is used as long as nothing has changed on which it depends: the configuration, this code, the sweep's files, its task
store and its runs in MLflow. Everything else takes the usual way, which checks and repairs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.load import located
from orchestrator.config.strict_yaml import overridden, read_yaml, with_grids
from orchestrator.errors import OrchestratorError
from orchestrator.plan.plan import LEARNER_VERSIONS, RESULTS_VERSION, SCHEDULE_VERSIONS, sweep_folder
from orchestrator.storage import atomic
from orchestrator.storage.journal import LOCK, given_before
from orchestrator.tracking.database import DEFAULT_URI, sweep_contents
from streams.store.address import is_address
from streams.store.canonical_json import digest

if TYPE_CHECKING:
    from orchestrator.config.schema import Sweep
    from orchestrator.sweep.result import SweepResult
    from streams.recipe import Recipe

FILE = "result.json"
_PACKAGES = Path(__file__).parents[2]


@dataclass(frozen=True)
class CachedResult:
    """What the command prints about a finished sweep; see `SweepResult`.

    Attributes:
        headline: the line on standard error.
        text: the table and the lines below it.
        line: the result in one line.
        json: the JSON document.
    """

    headline: str
    text: str
    line: str
    json: str
    problems = ()
    exit_code = 0


def keep(sweep: Sweep, root: Path, store: Path, headline: str, result: SweepResult) -> None:
    """Keep the result of a sweep that ended without a problem in its folder.

    Nothing is kept if MLflow is a server, or something else may change that `_state` does not see.
    """
    if sweep.has_own_modules or any(spec.start for spec in sweep.learners) or _may_change(sweep.recipe, sweep.store):
        return
    cached = CachedResult(headline, result.text, result.line, result.json)
    state = _state(sweep.source, sweep.name, root, store, sweep.document.tracking.uri)
    if state is not None:
        with suppress(OSError):  # the next command takes the usual way
            atomic.write(root / FILE, atomic.with_digest({"store": str(store), "state": state, **asdict(cached)}))


def _may_change(recipe: Recipe, store: str | None) -> bool:
    """Whether a task store may change while its files here do not: it is at an address, or of the user's data."""
    if store is not None:
        return is_address(store)
    places = (item for item in fields(recipe) if item.metadata.get("location"))
    return any(getattr(recipe, item.name) != item.default for item in places)


def recall(options: Namespace) -> CachedResult | None:
    """The kept result of the sweep that a command names, or None if there is none, or something has changed."""
    if options.plan or options.rerun or options.cluster is not None:
        return None
    try:
        document = _document(options)
        name, storage = document["name"], document.get("storage", "results")
        if is_address(storage):
            return None
        root = sweep_folder(storage, name)
        content = atomic.without_digest((root / FILE).read_text(encoding="utf-8"))
        uri = document.get("tracking", {}).get("uri", DEFAULT_URI)
        if content.pop("state") != _state(document, name, root, Path(content.pop("store")), uri):
            return None
        return CachedResult(**content)
    except (OrchestratorError, *atomic.DAMAGE):
        return None  # the usual way reports what is wrong


def _document(options: Namespace) -> dict[str, Any]:
    """The configuration that a command names, unchecked.

    Values separated by commas are grids, as in the journal: which options take lists, only PyTorch's learners know, and
    none of this package does.
    """
    if options.resume is None:
        return with_grids(overridden(read_yaml(*located(options.file)), options.overrides))
    storage = overridden({}, [word for word in options.overrides if word.startswith("storage=")]).get("storage")
    earlier, _ = given_before(sweep_folder(storage or "results", options.resume), options.resume)
    return with_grids(overridden(earlier, options.overrides))


def _state(document: Mapping[str, Any], name: str, root: Path, store: Path, uri: str) -> str | None:
    """The digest of all that the result of a sweep depends on; None if that cannot be found out quickly."""
    runs = sweep_contents(uri, name)
    if runs is None:
        return None
    rows, artifacts = runs
    code = [path for package in ("learners", "orchestrator", "streams") for path in (_PACKAGES / package).rglob("*.py")]
    of_sweep = (path for path in root.rglob("*") if path.name not in (FILE, LOCK) and not path.name.startswith("."))
    files = [*code, *of_sweep, *store.rglob("*"), *(path for folder in artifacts for path in folder.rglob("*"))]
    versions = [RESULTS_VERSION, LEARNER_VERSIONS, SCHEDULE_VERSIONS]
    return digest([document, str(root.absolute()), str(Path.cwd()), *versions, rows, _stamps(files)])


def _stamps(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Path, size and time of modification of each file."""
    stats = {str(path): path.stat() for path in paths if path.is_file()}
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in sorted(stats.items())]
