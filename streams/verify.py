"""Re-hash a task store: `python -m streams.verify DIR`."""

import sys
from collections.abc import Sequence

from streams.command_line import CommandLine, command
from streams.store.task_store import TaskStore


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m streams.verify") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Compare every byte of a task store with its manifests, and check every datapoint.")
    parser.add_argument("store", metavar="DIR", help="the store's folder")
    store = TaskStore.open(parser.parse_args(argv).store, verify=True)
    print(f"{store.path}: intact; {store.name}, {store.count:,} images, seeds {store.seeds}, hash {store.hash}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
