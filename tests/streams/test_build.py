"""Builds are atomic, deterministic, done once, and never write to the source's folder."""

import errno
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import streams
from streams import build as build_module
from streams import recipes
from streams.build import build, cached, main
from streams.errors import OptionError, SourceError, StoreError
from streams.images import ImageFolder
from streams.rainbow import RainbowDigits, RainbowMnist
from streams.store.publish import publish
from streams.store.task_store import Table, TaskStore
from tests.rights import denied

ROOT = Path(__file__).resolve().parents[2]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_recipes_are_found_by_name() -> None:
    known = recipes()
    assert known["rainbow_mnist"].name == "rainbow_mnist"
    assert {"rainbow_mnist", "rainbow_digits"} <= set(known)


def test_the_same_inputs_give_the_same_bytes(digits_store: TaskStore, tmp_path: Path) -> None:
    again = build(RainbowDigits(), [2, 0, 1, 0], tmp_path / "again")
    assert again.hash == digits_store.hash
    for name in ("manifest.json", "images.arrow", "seed-2/manifest.json", "seed-2/datapoints.arrow"):
        assert (again.path / name).read_bytes() == (digits_store.path / name).read_bytes()


def test_seeds_are_added_without_touching_the_rest(digits_store: TaskStore, tmp_path: Path) -> None:
    store = build(RainbowDigits(), [1], tmp_path / "store")
    before = {name: facts for name, facts in snapshot(store.path).items() if "seed" not in name or "seed-1/" in name}
    grown = build(RainbowDigits(), range(3), tmp_path / "store")
    after = snapshot(store.path)
    assert all(after[name] == facts for name, facts in before.items())
    assert (store.hash, grown.seeds) == (grown.hash, [0, 1, 2])
    for seed in range(3):
        assert grown.table(seed).manifest == digits_store.table(seed).manifest
    TaskStore.open(grown.path, verify=True)


def test_an_existing_store_is_not_built_again(digits_store: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(digits_store.path)
    monkeypatch.setattr(RainbowDigits, "collect", lambda *_: pytest.fail("the source was read again"))
    build(RainbowDigits(), [0, 2], digits_store.path)
    assert snapshot(digits_store.path) == before


def test_a_complete_store_needs_no_lock(
    digits_store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "locked", lambda _: pytest.fail("a lock was requested"))
    assert build(RainbowDigits(), [0, 1], digits_store.path).hash == digits_store.hash


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        build(RainbowDigits(), [0], tmp_path / "file" / "store")
    assert str(caught.value).startswith(f"{tmp_path / 'file'}")
    assert "cannot be read or written (got " in str(caught.value)


def test_a_folder_that_may_not_be_searched_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setenv("FOML_CACHE", str(closed / "cache"))
    line = "cannot be read or written (got Permission denied); choose another folder, or get write access to this one"
    with denied(closed):
        assert main(["rainbow_digits", "tasks=2", "--out", str(closed / "out" / "store")]) == 2
        with pytest.raises(StoreError) as caught:
            cached(RainbowDigits(tasks=2), [0])
    assert capsys.readouterr().err == f"{closed / 'out'}: {line}\n"
    assert caught.value.faults == (f"{closed / 'cache' / 'stores'}: {line}",)


def test_a_broken_recipe_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setattr(streams, "__path__", [*streams.__path__, str(tmp_path)])
    assert main(["rainbow_digits", "--out", str(tmp_path / "store")]) == 2
    line = "streams/broken.py: cannot be imported (got ZeroDivisionError: division by zero)\n"
    assert capsys.readouterr().err == line


def test_a_folder_with_other_files_is_not_changed(digits_store: TaskStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        build(RainbowDigits(tasks=5), [0], digits_store.path)
    assert str(caught.value).startswith(f'{digits_store.path}: must be empty or hold the store of {{"name"')
    assert "\n" not in str(caught.value)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"is not a task store: it holds no manifest\.json"):
        build(RainbowDigits(), [0], tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


def test_a_link_to_an_empty_or_missing_folder_is_followed(digits_store: TaskStore, tmp_path: Path) -> None:
    """The finished store was deleted, since a folder cannot be renamed to a link."""
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    for name in ("empty", "missing"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
        assert build(RainbowDigits(), [0, 1, 2], tmp_path / name).hash == digits_store.hash
        assert TaskStore.open(tmp_path / "disk" / name, verify=True).hash == digits_store.hash
        assert (tmp_path / name).is_symlink()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StoreError, match=r"loop: cannot be read or written \(got "):
        build(RainbowDigits(), [0], tmp_path / "loop")


def test_a_folder_that_cannot_be_replaced_is_refused_before_the_source_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount point, as in a container: the store was built, could not be renamed to it, and was deleted."""
    (tmp_path / "mounted").mkdir()

    def rename(path: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path), None, str(target))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="busy"):
        publish(tmp_path / "mounted", lambda _: None)
    monkeypatch.setattr(RainbowDigits, "collect", lambda *_: pytest.fail("the source was read"))
    with pytest.raises(StoreError) as caught:
        build(RainbowDigits(), [0], tmp_path / "mounted")
    rule = "a new store replaces this empty folder, which must be possible (got Device or resource busy)"
    assert str(caught.value) == f"{tmp_path}/mounted: {rule}; name a new folder in it"


def test_the_current_folder_is_replaced_if_it_is_empty(
    made_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    recipe = ImageFolder(data=os.path.relpath(made_folder), tasks=4, train=20, validation=6, test=6, size=8)
    assert build(recipe, [0], ".").path == tmp_path / "empty"


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module, "write_seed", fail)
    with pytest.raises(StoreError) as caught:
        build(RainbowDigits(), [0], tmp_path / "store")
    line, room = str(caught.value).split("; ")
    assert line == f"{tmp_path / 'store'}: cannot be read or written (got No space left on device)"
    assert re.fullmatch(r"make room: [\d,]+ bytes are free", room)
    assert [path.name for path in tmp_path.iterdir()] == [".store.lock"]


KILLED = """
import sys, time
from streams import build
from streams.images import ImageFolder
def hang(*_):
    print("writing", flush=True)
    time.sleep(60)
build.write_seed = hang
build.build(ImageFolder(data=sys.argv[2], size=8), [0], sys.argv[1])
"""


def test_a_killed_build_leaves_no_store(made_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    words = [sys.executable, "-c", KILLED, str(out), str(made_folder)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert len(list(tmp_path.glob(".store.unfinished-*"))) == 1
    store = build(ImageFolder(data=str(made_folder), size=8), [0], out)
    TaskStore.open(store.path, verify=True)
    assert list(tmp_path.glob(".store.unfinished-*")) == []


def build_cached(data: Path, seeds: list[int]) -> tuple[str, str, bool]:
    reports: list[str] = []
    store = cached(ImageFolder(data=str(data), size=8), seeds, lambda what, *_: reports.append(what))
    TaskStore.open(store.path, verify=True)
    return str(store.path), store.hash, "decoding images" in reports


def test_four_simultaneous_processes_build_one_cached_store(
    made_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        built = list(pool.map(build_cached, [made_folder] * 4, [[0], [0, 1], [1, 2], [0, 2]]))
    (folder,) = (path for path in (tmp_path / "stores").iterdir() if path.is_dir())
    assert {path for path, _, _ in built} == {str(folder)}
    assert len({store_hash for _, store_hash, _ in built}) == 1
    assert [decoded for _, _, decoded in built].count(True) == 1  # one read the source, the others waited
    assert folder.name.startswith("image_folder-")
    assert TaskStore.open(folder, verify=True).seeds == [0, 1, 2]
    assert sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock")) == [
        "images.arrow", "manifest.json", "seed-0", "seed-1", "seed-2",
    ]  # fmt: skip


def test_a_seed_may_be_added_while_a_store_is_verified(made_folder: Path, tmp_path: Path) -> None:
    recipe = ImageFolder(data=str(made_folder), size=8)

    class GrowsMeanwhile(TaskStore):
        def table(self, seed: int) -> Table:
            build(recipe, [0, 1, 2], self.path)  # as another process would
            return super().table(seed)

    build(recipe, [0, 2], tmp_path / "store")
    assert GrowsMeanwhile.open(tmp_path / "store", verify=True).seeds == [0, 1, 2]


def test_the_cache_distinguishes_options_and_data_folders(
    made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    small = {"tasks": 2, "train": 20, "validation": 5, "test": 5}
    first = cached(RainbowMnist(data=str(made_mnist), **small), [0])
    same = cached(RainbowMnist(data=str(made_mnist / "MNIST"), **small), [0])
    other = cached(RainbowMnist(data=str(made_mnist), **{**small, "tasks": 3}), [0])
    assert first.path == same.path != other.path
    assert first.manifest["recipe"] == {"name": "rainbow_mnist", **small}  # where the data lay is not recorded


def test_data_folders_are_never_written_to(made_mnist: Path, tmp_path: Path) -> None:
    folders = [made_mnist, made_mnist / "MNIST", made_mnist / "MNIST" / "raw"]
    before = snapshot(made_mnist)
    for folder in folders:
        folder.chmod(0o555)
    try:
        store = build(RainbowMnist(data=str(made_mnist), tasks=2), [0], tmp_path / "store")
        TaskStore.open(store.path, verify=True)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert snapshot(made_mnist) == before


def test_no_seed_and_negative_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="must name at least one seed"):
        build(RainbowDigits(), [], tmp_path / "store")
    with pytest.raises(OptionError, match=r"must be whole numbers of at least 0 \(got -2\)"):
        build(RainbowDigits(), [0, -2], tmp_path / "store")
    with pytest.raises(OptionError) as caught:
        build(RainbowDigits(), [0.5, "2", 1], tmp_path / "store")  # type: ignore[list-item]
    assert str(caught.value) == "\n".join(f"seeds: must be whole numbers of at least 0 (got {got})" for got in (0.5, 2))
    for seeds in (1.0, "12", None):
        with pytest.raises(OptionError, match=rf"seeds: must be a number of seeds, or a list of seeds \(got {seeds}\)"):
            build(RainbowDigits(), seeds, tmp_path / "store")  # type: ignore[arg-type]


def test_a_source_too_large_for_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        np.empty(2**62, dtype=np.uint8)

    monkeypatch.setattr(RainbowDigits, "collect", fail)
    with pytest.raises(SourceError) as caught:
        build(RainbowDigits(), [0], tmp_path / "store")
    assert str(caught.value).startswith("rainbow_digits: does not fit into memory (got Unable to allocate 4.00 EiB")


def test_data_of_an_existing_store_is_not_read(
    made_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images are kept; a line reports that the data was not read; missing data is a fault."""
    out, other = tmp_path / "store", tmp_path / "other"
    words = ["image_folder", "size=8", "tasks=2", "--out", str(out)]
    assert main([*words, "--seeds", "1", "--data", str(made_folder)]) == 0
    built = capsys.readouterr()
    assert "existed" not in built.err
    other.mkdir()
    for seeds in ("1", "2"):
        assert main([*words, "--seeds", seeds, "--data", str(other)]) == 0
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"{out}: existed, built from image folder; its 132 images are kept, and {other} was not read"
        )
    assert TaskStore.open(out, verify=True).seeds == [0, 1]
    for seeds in ("2", "3"):
        assert main([*words, "--seeds", seeds, "--data", str(tmp_path / "none")]) == 2
        assert capsys.readouterr().err == (
            f"{tmp_path / 'none'}: data: must exist; "
            "name the data that the store was built from, or leave data out if the recipe allows it\n"
        )
    assert TaskStore.open(out).seeds == [0, 1]


def test_the_command_builds_and_prints_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "store"
    assert main(["rainbow_digits", "tasks=2", "--out", str(out), "--seeds", "2", "train=30"]) == 0
    store = TaskStore.open(out)
    line = f"{out}: rainbow_digits, 5,000 images, seeds [0, 1], hash {store.hash}\n"
    assert capsys.readouterr().out == line
    assert store.manifest["recipe"] == {"name": "rainbow_digits", "tasks": 2, "train": 30, "validation": 60, "test": 60}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["rainbow_digit"], ["stream: must be one of "]),
        (["rainbow_digits", "tasks=0", "oops"], ["oops: options are written key=value"]),
        (["rainbow_mnist", "--data", "nowhere"], ["nowhere: data: must be a folder that exists"]),
        (["rainbow_digits", "--seeds", "0"], ["seeds: must name at least one seed"]),
        (["rainbow_digits", "--seeds", "9" * 12], ["seeds: must be at most 10000 (got "]),
    ],
)
def test_the_command_prints_faults_without_a_traceback(tmp_path: Path, words: list[str], lines: list[str]) -> None:
    command = [sys.executable, "-m", "streams.build", *words, "--out", str(tmp_path / "store")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"}
    )
    assert done.returncode == 2
    printed = done.stderr.splitlines()
    assert len(printed) == len(lines)
    assert all(line.startswith(start) for line, start in zip(printed, lines, strict=True))
    assert not (tmp_path / "store").exists()
