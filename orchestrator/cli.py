"""The command `foml`: every command of the project, as `foml sweep` instead of `python -m orchestrator.sweep`."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from streams.command_line import CommandLine, set_up_command

COMMANDS = {
    "sweep": ("orchestrator.sweep.__main__", "run a sweep, or print its plan and cost"),
    "list": ("orchestrator.list", "list the sweeps of a folder with their states"),
    "show": ("orchestrator.show", "show a sweep's configuration with every default"),
    "report": ("orchestrator.report.__main__", "write the report of a sweep from MLflow"),
    "ui": ("orchestrator.ui", "show the curves of a sweep in MLflow's UI"),
    "predict": ("orchestrator.predict", "predict the classes of images with the learner of a run"),
    "rerun": ("orchestrator.rerun", "compute a run again, and compare it bit for bit"),
    "regret": ("orchestrator.regret", "compute the regret against networks fitted in hindsight"),
    "doctor": ("orchestrator.doctor.__main__", "check everything that a sweep needs"),
    "ship": ("orchestrator.ship", "build the wheel that a cluster installs"),
    "build": ("streams.build", "build a task store"),
    "inspect": ("streams.inspect", "describe a task store, and draw its tasks"),
    "verify": ("streams.verify", "compare every byte of a task store with its manifests"),
}
"""Command → (the module whose `main` runs it, what it does); a module is imported when its command runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    if argv is None:
        argv = sys.argv[1:]
        set_up_command()
        sys.path.append(os.getcwd())  # modules of the user's own learners are found there, after all others
    words = list(argv)
    if words and words[0] in COMMANDS:
        module, _ = COMMANDS[words[0]]
        return int(import_module(module).main(words[1:], prog=f"foml {words[0]}"))
    lines = [f"  {name:9}{text}" for name, (_, text) in COMMANDS.items()]
    description = "\n".join(["Run experiments in online meta-learning.", "", "commands:", *lines])
    parser = CommandLine("foml", description)
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="`foml COMMAND --help` describes each")
    parser.add_argument("--version", action="version", version=f"foml {_version()}")
    parser.parse_args(words)
    parser.error("COMMAND must be the first argument")


def _version() -> str:
    try:
        return version("foml-orchestrator")
    except PackageNotFoundError:  # run from the sources
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
