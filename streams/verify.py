"""Re-hash a task store: `python -m streams.verify DIR`. Exit code 0, or 2 with one line for every fault."""

import argparse
import sys
from collections.abc import Sequence

from streams.errors import StreamsError
from streams.store.task_store import TaskStore


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m streams.verify", description="Compare every byte with what was written, and check what it says."
    )
    parser.add_argument("store", help="the store's folder")
    given = parser.parse_args(arguments)
    try:
        store = TaskStore.open(given.store, verify=True)
    except StreamsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{store.path}: whole; {store.name}, {store.count:,} images, seeds {store.seeds}, hash {store.hash}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
