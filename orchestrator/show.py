"""Show the configuration of a sweep with every default: `python -m orchestrator.show [NAME or FILE] [key=value ...]`.

The YAML is itself the file of a sweep: of the same one, as long as no default changes.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.config.load import check_sweep, load_sweep, ready_sweeps
from orchestrator.config.strict_yaml import overridden
from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.plan.expand import resolved
from orchestrator.plan.plan import sweep_folder
from orchestrator.storage.journal import FILE, given_before, has_journal, recorded, sweep_names
from streams import recipes, yaml_values
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
        content, source = _as_given(resolved(sweep), sweep.source["stream"]), sweep.file
    else:
        source_document, modules = given_before(folder, folder.name, "NAME")
        _search_also(modules)
        content, source = _as_given(recorded(folder), source_document.get("stream", {})), str(folder / FILE)
        if overrides:
            sweep = check_sweep(overridden(content, overrides), source, modules)
            content = _as_given(resolved(sweep), sweep.source["stream"])
    return masked_values(content), source


def _folder(name: str, storage: str) -> Path | None:
    """The folder of a sweep that was started before; None if the name is that of a file, or of nothing."""
    if os.path.isfile(name):
        return None
    folders = [folder for folder in (Path(name), sweep_folder(storage, name)) if has_journal(folder)]
    if not folders and not Path(name).suffix and Path(name).name == name:
        started = sweep_names(Path(storage))
        rule = f"must be a YAML file, a ready sweep ({', '.join(ready_sweeps())}) or a sweep in {storage}"
        raise ConfigError(fault(name, "", rule, remedy=f"sweeps there: {', '.join(started) or 'none'}"))
    return folders[0] if folders else None


def _search_also(modules: str | None) -> None:
    from learners import registry  # imports torch

    if modules is not None:
        registry.search_also(modules)


def _as_given(content: Mapping[str, Any], file_stream: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration in the form of a sweep's file.

    Args:
        content: as `plan.expand.resolved` returns it, without the places of data, and without options that a later
            version added where they have their default.
        file_stream: the `stream` of the sweep's file, which has the places of data.
    """
    stream = content["stream"]
    schedule = dict(stream["schedule"])
    held_back = {"held_back": schedule.pop("held_back")} if "held_back" in schedule else {}
    recipe = recipes().get(stream["name"])
    places = {"store", *(item.name for item in (fields(recipe) if recipe else ()) if item.metadata.get("location"))}
    named = {
        "name": stream["name"],
        **_with_additions(stream["options"], recipe),
        **{key: value for key, value in file_stream.items() if key in places},
        "schedule": schedule,
        **held_back,
    }
    learners = [_with_additions(entry, _options_class(entry["name"])) for entry in content["learners"]]
    return {**content, "stream": named, "learners": learners}


def _options_class(learner: str) -> type | None:
    """The class of a learner's options; None if the learner does not exist any more."""
    from learners import registry  # imports torch

    with suppress(ValueError):
        return registry.learner_class(learner).options_class
    return None


def _with_additions(options: Mapping[str, Any], kind: type | None) -> dict[str, Any]:
    """The options, with the default of each `addition` that is not among them."""
    additions = [item for item in (fields(kind) if kind else ()) if item.metadata.get("addition")]
    return {**options, **{item.name: item.default for item in additions if item.name not in options}}


def as_yaml(content: Mapping[str, Any]) -> str:
    """A configuration as YAML."""
    plain = json.loads(json.dumps(content))  # no tuples, and no object twice
    return yaml_values.as_yaml(plain, default_flow_style=None, width=120)


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
