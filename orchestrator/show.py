"""Show the configuration of a sweep with every default: `python -m orchestrator.show [NAME or FILE] [key=value ...]`.

The YAML is itself the file of a sweep: of the same one, as long as no default changes.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.load import check_sweep, load_sweep, ready_sweeps
from orchestrator.config.strict_yaml import overridden
from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.plan.expand import resolved
from orchestrator.plan.plan import sweep_folder
from orchestrator.storage.journal import FILE, given_before, recorded
from streams.command_line import CommandLine, command
from streams.errors import masked, masked_values

FORMAT = 1
"""Of the JSON document: increased when a key is removed or changes its meaning."""


def document(name: str | None, overrides: Sequence[str] = (), storage: str = "results") -> tuple[dict[str, Any], str]:
    """The configuration of a sweep with every default, and where it is from.

    Args:
        name: a YAML file, a ready sweep, a sweep in `storage`, or the folder of one; the quickstart if None.
        overrides: `key=value` arguments.
        storage: the folder of sweeps that were started before.

    Raises:
        ConfigError: one line for everything that is wrong.
    """
    folder = None if name is None or name in ready_sweeps() else _folder(name, storage)
    if folder is None:
        sweep = load_sweep(name, overrides)
        source, store = sweep.file, sweep.store
        content = resolved(sweep)
    else:
        source_document, modules = given_before(folder, folder.name, "NAME")
        content, source = recorded(folder), str(folder / FILE)
        store = source_document.get("stream", {}).get("store")
        if overrides:
            sweep = check_sweep(overridden(_as_given(content, store), overrides), source, modules)
            content, store = resolved(sweep), sweep.store
    return masked_values(_as_given(content, store)), source


def _folder(name: str, storage: str) -> Path | None:
    """The folder of a sweep that was started before; None if the name is that of a file, or of nothing."""
    if Path(name).is_file():
        return None
    folders = [folder for folder in (Path(name), sweep_folder(storage, name)) if (folder / FILE).is_file()]
    if not folders and not Path(name).suffix and Path(name).name == name:
        started = sorted(path.parent.name for path in Path(storage).glob(f"*/{FILE}"))
        rule = f"must be a YAML file, a ready sweep ({', '.join(ready_sweeps())}) or a sweep in {storage}"
        raise ConfigError(fault(name, "", rule, remedy=f"sweeps there: {', '.join(started) or 'none'}"))
    return folders[0] if folders else None


def _as_given(content: Mapping[str, Any], store: str | None) -> dict[str, Any]:
    """A resolved configuration in the form of a sweep's file."""
    stream = content["stream"]
    schedule = dict(stream["schedule"])
    held_back = {"held_back": schedule.pop("held_back")} if "held_back" in schedule else {}
    named = {"name": stream["name"], **stream["options"], "schedule": schedule, **held_back}
    return {**content, "stream": named | ({} if store is None else {"store": store})}


def as_yaml(content: Mapping[str, Any]) -> str:
    """A configuration as YAML."""
    plain = json.loads(json.dumps(content))  # no tuples, and no object twice
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    return text


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.show") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Show the configuration of a sweep with every default, as YAML.")
    what = "a YAML file, a ready sweep or one that was started (default: the quickstart), and changes"
    parser.add_argument("words", nargs="*", metavar="NAME, FILE or key=value", help=what)
    parser.add_argument("--storage", default="results", metavar="DIR", help="the folder of sweeps that were started")
    parser.add_argument("--json", action="store_true", help="the configuration as one JSON document")
    options = parser.parse_args(argv)
    names = [word for word in options.words if "=" not in word]
    if len(names) > 1:
        raise OrchestratorError(fault("NAME", "", "must be one sweep", " ".join(names)))
    overrides = [word for word in options.words if "=" in word]
    content, source = document(next(iter(names), None), overrides, options.storage)
    if options.json:
        print(json.dumps({"format": FORMAT, "from": source, "sweep": content}, indent=2, ensure_ascii=False))
    else:
        print(f"# {masked(' '.join([source, *overrides]))}, with every default\n{as_yaml(content)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
