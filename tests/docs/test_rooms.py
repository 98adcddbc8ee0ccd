"""The house has rooms: small folders, names from the glossary, one-sentence summaries, no two public classes of one name."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("learners", "streams", "orchestrator")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LIMIT = 12

# The top of a package holds rooms, the contract, commands and what users add: nothing else.
TOPS = {
    "learners": {
        *("base", "state", "registry", "checkpoint", "batch", "images", "seeding"),
        *("foml", "tfs", "toe", "ftl", "ftml", "lwf", "icarl", "moca", "online", "replay"),
        *("l2_init", "shrink_perturb", "der", "la_maml", "ewc", "continual_backprop"),
        *("training", "networks", "changepoint"),
    },
    "streams": {
        *("recipe", "schedule", "stream", "views", "errors", "options"),
        *("progress", "randomness", "class_tasks", "look_tasks", "pools", "command_line", "yaml_values"),
        *("rainbow", "online_cifar100", "online_celeba", "images", "image_looks", "digits"),
        *("build", "inspect", "verify"),
        *("store", "sources"),
    },
    "orchestrator": {
        *("errors", "cli", "list", "predict", "rerun", "regret", "ship", "show", "ui"),
        *("sweep", "doctor", "report", "execution", "cluster", "search", "tracking", "storage", "console"),
        *("plan", "config", "protocol", "system"),
    },
}

# Words of folder and module names that are everyday programming words, or names of methods, data sets and libraries.
EVERYDAY = set(
    re.findall(
        r"\w+",
        """
        api architecture architectures archive arguments arrays atomic backprop build cache callbacks canonical celeba chart charts checks cross
        cifar cifar100 cli cluster comparison console context continual conv cost count cuda database decisions decode requests
        der derived determinism digits doctor document downloads ewc expand foml forecast ftl ftml graphs hardware health hidden html importance
        identity init inspect jobs kubernetes l2 la launcher line list load look looks lwf maml messages mnist model models optim optuna output
        objects ownership parquet pcoc published perturb processes progress publish queue rainbow randomness reader registry rerun schema screen
        seeding session ship show shrink siamese space stages strict sync tfs toe transport ui units verify views window winograd writer
        """,
    )
)

# Public names of classes that two modules use. Each learner's file has one `Options` beside its class: that is the contract.
SHARED_NAMES = {"Options"}


def glossary() -> list[tuple[str, str]]:
    """Each term of the glossary with its text, in the order of the page."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^- \*\*([^*]+)\*\*(.*(?:\n  .*)*)", text, re.MULTILINE)


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}


def rooms(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def is_one_sentence(docstring: str | None) -> bool:
    """Whether the first paragraph is one sentence that ends with a full stop."""
    summary = " ".join((docstring or "").split("\n\n")[0].split())
    quoted = re.sub(r"`[^`]*`|\([^()]*\)|\b(?:et al|e\.g|i\.e|cf|vs)\.", "x", summary)
    return bool(re.fullmatch(r"[^.?!](?:[^.?!]|[.?!](?=\S))*[.]", quoted)) or summary.endswith(".`.")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_top_of_a_package_holds_rooms_contract_commands_and_what_users_add(package: str) -> None:
    assert modules(ROOT / package) | rooms(ROOT / package) == TOPS[package]


def test_a_room_has_at_most_twelve_modules() -> None:
    sizes = {
        path.parent.relative_to(ROOT).as_posix(): len(modules(path.parent))
        for path in FILES
        if path.name == "__init__.py" and path.parent.name not in PACKAGES
    }
    assert len(sizes) >= 18
    assert {room: size for room, size in sizes.items() if size > LIMIT} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_summaries_are_one_sentence(package: str) -> None:
    unfinished = []
    for path in FILES:
        if path.relative_to(ROOT).parts[0] != package:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
        for node in (tree, *public):
            if not is_one_sentence(ast.get_docstring(node)):
                unfinished.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}")
    assert unfinished == []


def test_no_two_public_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1 and name not in SHARED_NAMES} == {}


def test_the_glossary_is_short_alphabetical_and_names_what_exists() -> None:
    terms = [term for term, _ in glossary()]
    assert 40 <= len(terms) <= 60
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms))
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:learners|streams|orchestrator)/[\w/.]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_names_of_rooms_and_modules_are_words_of_the_glossary_or_everyday_words() -> None:
    text = "\n".join(term + definition for term, definition in glossary())
    words = {word.lower() for word in re.findall(r"[A-Za-z0-9]+", text)} | EVERYDAY
    strange = set()
    for path in FILES:
        place = path.relative_to(ROOT).with_suffix("")
        for word in re.findall(r"[a-z0-9]+", "_".join(part for part in place.parts if not part.startswith("__"))):
            if not words & {word, word.removesuffix("s"), word + "s"}:
                strange.add(f"{place}: {word}")
    assert sorted(strange) == []
