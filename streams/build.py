"""Build task stores: `python -m streams.build NAME --out DIR [--seeds 3] [key=value ...]`, or `build` and `cached`."""

import errno
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from streams.command_line import CommandLine, command
from streams.errors import Faults, OptionError, SourceError, StoreError, fault
from streams.images import ImagePairs, ImageSource, SingleImages
from streams.options import from_options, option_faults, plain_values, recipe_from_words
from streams.pools import first_copies
from streams.progress import ProgressLine
from streams.recipe import Images, Progress, Recipe, SeedTable, recipes, silent
from streams.sources.image_files import Listing
from streams.sources.objects import list_dataset
from streams.store import manifest as manifests
from streams.store.cache import cache_folder, locked
from streams.store.canonical_json import canonical, digest
from streams.store.checks import check_collected, check_table
from streams.store.publish import publish, remove_unfinished, require_replaceable, write_images, write_seed
from streams.store.task_store import TaskStore

MOST_SEEDS = 10_000


def build(recipe: Recipe, seeds: int | Iterable[int], out: str | Path, progress: Progress = silent) -> TaskStore:
    """Build a store, or add missing seeds to an existing one.

    The images of an existing store stay, and the recipe's `data` is not read again, only required to exist.

    Args:
        recipe: what to build.
        seeds: stream seeds, each 0 or above; of a number n, those from 0 to n - 1.
        out: the store's folder.
        progress: called while the build runs (see `recipe.Progress`).

    Returns:
        The store, open.

    Raises:
        SourceError: one line for every fault of the source; or the source does not fit into memory.
        StoreError: `out` holds something else or a damaged store, or cannot be written.
        OptionError: there is no seed, or one that is not a whole number of at least 0, or an option is wrong.
    """
    requested = _checked_seeds(seeds)
    folder = Path(out).expanduser().absolute()
    if os.path.islink(folder):  # the methods of `Path` raise where a folder may not be searched
        folder = Path(os.path.realpath(folder))  # a folder that is renamed to a link does not replace the link's target
    existed = os.path.isfile(folder / manifests.NAME)
    faults = option_faults(recipe) + ([] if existed else recipe.check_locations())
    if faults:
        raise OptionError(*faults)
    if existed:
        _check_data(recipe)
        # A complete store needs no lock, so that it may lie in a read-only folder.
        store = _open(recipe, folder)
        if set(requested) <= set(store.seeds):
            _print(recipe, recipe.remarks(store.images))
            return store
    try:
        with locked(folder):
            remove_unfinished(folder)
            empty = folder.is_dir() and not any(folder.iterdir())
            if empty:
                require_replaceable(folder)
            if empty or not folder.exists():
                _build_new(recipe, requested, folder, progress)
                store = _open(recipe, folder)
            else:
                store = _open(recipe, folder)
                _print(recipe, recipe.remarks(store.images))
            _add_seeds(recipe, store, [seed for seed in requested if seed not in store.seeds], progress)
    except MemoryError as error:
        remedy = "lower the size of images or the number of tasks and datapoints, or use fewer images"
        raise SourceError(
            fault(recipe.name, "does not fit into memory", str(error) or "out of memory", remedy)
        ) from error
    except OSError as error:
        remedy = "choose another folder, or get write access to this one"
        reason = os.strerror(error.errno) if error.errno else error  # Arrow sets no errno
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"make room: {shutil.disk_usage(folder.parent).free:,} bytes are free"
        where = error.filename2 or error.filename or folder  # the second is the target of a rename
        raise StoreError(fault(where, "cannot be read or written", reason, remedy)) from error
    return TaskStore.open(folder)


def cached(recipe: Recipe, seeds: int | Iterable[int], progress: Progress = silent) -> TaskStore:
    """The recipe's store in the cache folder (`$FOML_CACHE` or `~/.cache/foml-orchestrator`), built on the first call.

    Several processes may call it simultaneously: one builds, the others wait and map the result.

    Raises:
        See `build`.
    """
    try:
        state = recipe.fingerprint()
    except (SourceError, OSError) as error:
        if faults := recipe.check_locations():
            raise OptionError(*faults) from error
        if isinstance(error, SourceError):
            raise
        raise SourceError(fault(error.filename or recipe.name, "cannot be read", error.strerror or error)) from error
    key = digest([manifests.FORMAT_VERSION, recipe.identity(), state], 12)
    name = f"{recipe.name}-{key}"
    return build(recipe, seeds, cache_folder() / "stores" / name, progress)


def from_dataset(
    dataset: Any,
    out: str | Path,
    seeds: int | Iterable[int] = (0,),
    pairs: bool = False,
    class_names: Sequence[str] | None = None,
    progress: Progress = silent,
    **options: Any,
) -> TaskStore:
    """Build a store of the recipe `images`, or `image_pairs`, from a data set in Python.

    Args:
        dataset: map-style, with a length and items by index, as PyTorch's and Hugging Face's: an item is a pair of
            image and label, or a mapping. An image is of PIL, a tensor or an array. A mapping from `train`,
            `validation` and `test` to such data sets gives the split.
        out: the store's folder, which `stream.store` names.
        seeds: stream seeds, each 0 or above; of a number n, those from 0 to n - 1.
        pairs: whether a datapoint is a pair of images.
        class_names: the names of the classes 0, 1, ...; those of the data set if None.
        progress: called while the build runs.
        options: of the recipe, such as `size`, `channels`, `tasks`, `label_column`.

    Returns:
        The store, open. If it exists, the data set is not read, and missing seeds are added.

    Raises:
        See `build`.
    """
    kind: type[ImageSource] = ImagePairs if pairs else SingleImages

    class FromDataset(kind):  # type: ignore[valid-type,misc]  # local, so that it is no second recipe of the name
        def check_locations(self) -> list[str]:
            """The data set is the location, so that options of other sources would have no effect."""
            unused = ("data", "split_column", "nested_classes")
            return [
                fault(f"{self.name}.{key}", "has no effect with a data set in Python", value, "leave it out")
                for key in unused
                if (value := getattr(self, key))
            ]

        def listing(self) -> Listing:
            """The images of the data set."""
            listing = list_dataset(dataset, self.columns(), class_names, self.background)
            return listing if self.given_split else replace(listing, splits=None)

    faults = Faults(key=kind.name)
    recipe = from_options(FromDataset, plain_values(options), faults)
    faults.check(OptionError)
    assert recipe is not None
    return build(recipe, seeds, out, progress)


def _check_data(recipe: Recipe) -> None:
    """Raise `SourceError` unless `data` exists, although it is not read: a wrong path must not pass unnoticed."""
    data = _data(recipe)
    if data is not None and not os.path.exists(Path(data).expanduser()):
        remedy = "name the data that the store was built from, or leave data out if the recipe allows it"
        raise SourceError(fault(data, "data: must exist", remedy=remedy))


def _data(recipe: Recipe) -> str | None:
    data = getattr(recipe, "data", None)
    return data if isinstance(data, str) else None


def _open(recipe: Recipe, folder: Path) -> TaskStore:
    """The store in `folder`, which must be this recipe's."""
    store = TaskStore.open(folder)
    if store.manifest["recipe"] != recipe.identity():
        got = canonical(store.manifest["recipe"])
        rule = f"must be empty or hold the store of {canonical(recipe.identity())}"
        raise StoreError(fault(folder, rule, got, "choose another folder"))
    return store


def _build_new(recipe: Recipe, seeds: list[int], folder: Path, progress: Progress) -> None:
    collected = recipe.collect(progress)
    check_collected(recipe, collected)
    lines = [*collected.source.get("notices", []), *collected.remarks, *recipe.remarks(collected.images)]
    splits = collected.images.splits
    if across := int((splits != splits[first_copies(collected.pixels)]).sum()):
        lines.append(f"{across} images are copies of one in another pool, as in the source")
    _print(recipe, lines)

    def write(unfinished: Path) -> None:
        progress("writing the store", 0, 1 + len(seeds))
        manifest = write_images(unfinished, recipe, collected)
        for done, seed in enumerate(seeds):
            progress("writing the store", 1 + done, 1 + len(seeds))
            (unfinished / f"seed-{seed}").mkdir()
            write_seed(unfinished / f"seed-{seed}", seed, _table(recipe, collected.images, seed), manifest["hash"])
        progress("writing the store", 1 + len(seeds), 1 + len(seeds))

    publish(folder, write)


def _print(recipe: Recipe, lines: Iterable[str]) -> None:
    """Print lines about a source on standard error: what is left out or differs is never silent."""
    for line in lines:
        print(f"{recipe.name}: {line}", file=sys.stderr)


def _add_seeds(recipe: Recipe, store: TaskStore, seeds: list[int], progress: Progress) -> None:
    for done, seed in enumerate(seeds):
        progress("adding seeds", done, len(seeds))
        folder = store.path / f"seed-{seed}"
        remove_unfinished(folder)
        table = _table(recipe, store.images, seed)
        publish(folder, partial(write_seed, seed=seed, table=table, store_hash=store.hash))
        progress("adding seeds", done + 1, len(seeds))


def _table(recipe: Recipe, images: Images, seed: int) -> SeedTable:
    table = recipe.seed_table(images, seed)
    check_table(recipe, images, table)
    return table


def _checked_seeds(seeds: Any) -> list[int]:
    seeds = plain_values(seeds)
    if isinstance(seeds, str | Mapping) or not isinstance(seeds, Iterable):
        if not isinstance(seeds, int) or isinstance(seeds, bool):
            raise OptionError(fault("seeds", "must be a number of seeds, or a list of seeds", seeds))
        if seeds > MOST_SEEDS:
            raise OptionError(fault("seeds", f"must be at most {MOST_SEEDS}", seeds))
        seeds = range(seeds)
    listed = [plain_values(seed) for seed in seeds]
    wrong = [seed for seed in listed if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0]
    faults = [fault("seeds", "must be whole numbers of at least 0", seed) for seed in wrong]
    if not listed:
        faults = [fault("seeds", "must name at least one seed")]
    if faults:
        raise OptionError(*faults)
    return sorted(set(listed))


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m streams.build") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Build a task store, or add seeds to one.")
    parser.add_argument("name", metavar="NAME", help=f"the recipe: {', '.join(sorted(recipes()))}")
    parser.add_argument("options", nargs="*", metavar="key=value", help="options of the recipe")
    parser.add_argument("--out", required=True, metavar="DIR", help="the store's folder")
    parser.add_argument("--data", metavar="DIR", help="the folder that holds the source data (same as data=DIR)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of stream seeds, 0 to N-1")
    parser.add_argument("--skip-bad", action="store_true", help="leave unreadable images out (same as skip_bad=true)")
    arguments = parser.parse_args(argv)
    words = [*arguments.options]
    words += [f"data={arguments.data}"] if arguments.data is not None else []
    words += ["skip_bad=true"] if arguments.skip_bad else []
    if arguments.seeds > MOST_SEEDS:
        raise OptionError(fault("seeds", f"must be at most {MOST_SEEDS}", arguments.seeds))
    recipe = recipe_from_words(arguments.name, words)
    existed = os.path.isfile(Path(arguments.out).expanduser() / manifests.NAME)
    store = build(recipe, range(arguments.seeds), arguments.out, ProgressLine())
    if existed and (data := _data(recipe)) is not None:
        source = store.manifest["source"].get("name", "another source")
        line = f"existed, built from {source}; its {store.count:,} images are kept, and {data} was not read"
        print(f"{store.path}: {line}", file=sys.stderr)
    print(f"{store.path}: {store.name}, {store.count:,} images, seeds {store.seeds}, hash {store.hash}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
