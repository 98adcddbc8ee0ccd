"""Options: from words and mappings to dataclasses, with one line for every rule that is broken."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from streams.errors import Faults, OptionError
from streams.images import ImageFolder, SingleImages
from streams.options import from_options, option_faults, recipe_from_words
from streams.rainbow import RainbowDigits, RainbowMnist
from streams.schedule import Gradual, Markov, Sequential


@dataclass(frozen=True)
class Mixed:
    rate: float
    mode: Literal["slow", "fast"] = "slow"
    parts: list[str] | None = None
    share: float = field(default=0.5, metadata={"gt": 0, "lt": 1})


def lines(kind: type, options: Mapping[str, Any], file: str = "") -> list[str]:
    faults = Faults(file, kind.__name__.lower())
    assert from_options(kind, options, faults, ["beside"]) is None
    return list(faults)


def test_words_become_options() -> None:
    assert recipe_from_words("rainbow_digits", ["tasks=8", "train=100"]) == RainbowDigits(tasks=8, train=100)
    assert recipe_from_words("rainbow_mnist", ["data=/a=b"]) == RainbowMnist(data="/a=b")
    assert recipe_from_words("rainbow_mnist", ["data=2024"]) == RainbowMnist(data="2024")
    assert recipe_from_words("rainbow_mnist", ["data=null"]) == RainbowMnist()
    words = ["data=a", "skip_bad=true", "test_share=0.25"]
    assert recipe_from_words("image_folder", words) == ImageFolder(data="a", skip_bad=True, test_share=0.25)


def test_each_wrong_word_is_reported() -> None:
    with pytest.raises(OptionError) as caught:
        recipe_from_words("rainbow_digits", ["task=8", "train=many", "validation=0", "test=601"])
    assert caught.value.faults == (
        "rainbow_digits.task: unknown key (got 8); did you mean tasks?",
        "rainbow_digits.train: must be a whole number (got many)",
        "rainbow_digits.validation: must be greater than or equal to 1 (got 0)",
        "rainbow_digits.test: must be less than or equal to 600 (got 601)",
    )
    with pytest.raises(OptionError) as caught:
        recipe_from_words("image_folder", ["skip_bad=maybe", "size=4.5", "test_share=half", "test=null"])
    assert caught.value.faults == (
        "image_folder.test: must be a whole number (got null)",
        "image_folder.skip_bad: must be true or false (got maybe)",
        "image_folder.size: must be a whole number (got 4.5)",
        "image_folder.test_share: must be a number (got half)",
    )


@pytest.mark.parametrize("text", ["[[cat, dog], [5, owl]]", '[["cat","dog"],[5,"owl"]]', " [ [cat, dog], ['5', owl] ]"])
def test_a_list_is_yaml_as_in_a_file(text: str) -> None:
    recipe = recipe_from_words("images", ["data=a", f"task_classes={text}", "size=8"])
    five = "5" if "'5'" in text else 5
    assert recipe == SingleImages(data="a", task_classes=[["cat", "dog"], [five, "owl"]], size=8)


@pytest.mark.parametrize("text", ["", "null", "~"])
def test_a_list_may_be_null(text: str) -> None:
    assert recipe_from_words("images", ["data=a", f"task_classes={text}"]) == SingleImages(data="a")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cat,dog", "task_classes: must be a list (got cat,dog)"),
        ("[cat, dog]", "task_classes[0]: must be a list (got cat)"),
        ("[[no, yes]]", "task_classes[0][0]: must be text, or a whole number (got False)"),
        ("[[a, 1.0]]", "task_classes[0][1]: must be text, or a whole number (got 1.0)"),
        ("[[a, b]", "task_classes: must be YAML, such as [a, b] (got [[a, b])"),
        ("[[a, 010]]", "task_classes: must be YAML, such as [a, b] (got [[a, 010]])"),
        ("[]", "task_classes: must not be empty"),
        ("[[a]]", "task_classes[0]: must name at least 2 classes, each once (got a)"),
    ],
)
def test_a_wrong_list_is_a_line(text: str, line: str) -> None:
    with pytest.raises(OptionError) as caught:
        recipe_from_words("image_pairs", ["data=a", f"task_classes={text}"])
    assert caught.value.faults[0] == f"image_pairs.{line}"


def test_a_wrong_list_is_reported_with_the_other_options() -> None:
    with pytest.raises(OptionError) as caught:
        recipe_from_words("images", ["data=a", "task_classes=[[a, 1.0], [b, [c]]]", "size=4.5"])
    rule = "must be text, or a whole number"
    assert sorted(caught.value.faults) == [
        "images.size: must be a whole number (got 4.5)",
        f"images.task_classes[0][1]: {rule} (got 1.0)",
        f"images.task_classes[1][1]: {rule} (got ['c'])",
    ]


def test_contradictions_between_options_are_reported_together() -> None:
    words = ["channels=2", "validation_share=0.5", "test_share=0.5", "keep=5", "train=41"]
    with pytest.raises(OptionError) as caught:
        recipe_from_words("image_folder_pairs", words)
    assert sorted(line.partition(":")[0] for line in caught.value.faults) == [
        f"image_folder_pairs.{key}" for key in ("channels", "data", "keep", "test_share", "train")
    ]


def test_streams_too_large_for_memory_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        recipe_from_words("image_folder", ["data=.", "size=100000000", f"tasks={10**13}"])
    assert caught.value.faults == ("image_folder.size: must be less than or equal to 1024 (got 100000000)",)
    with pytest.raises(OptionError) as caught:
        recipe_from_words("image_folder_pairs", ["data=.", f"train={10**10}"])
    assert caught.value.faults == (
        "image_folder_pairs.tasks: tasks * (train + validation + test) must be at most 100,000,000 "
        "(got 1,000,000,020,000)",
    )


def test_an_option_with_two_values_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        recipe_from_words("rainbow_digits", ["tasks=3", "train=9", "tasks=4", "train=9"])
    assert caught.value.faults == ("rainbow_digits.tasks: must be given once (got 3 and 4)",)


def test_an_unknown_recipe_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"^stream: must be one of .* \(got rainbow_digit\); did you mean rainbow_"):
        recipe_from_words("rainbow_digit", [])


def test_a_recipe_built_in_python_is_checked_too() -> None:
    assert option_faults(RainbowDigits(tasks=2)) == []
    assert option_faults(RainbowDigits(tasks=57, train=0)) == [
        "rainbow_digits.tasks: must be less than or equal to 56 (got 57)",
        "rainbow_digits.train: must be greater than or equal to 1 (got 0)",
    ]
    assert option_faults(RainbowDigits(tasks=np.int64(8))) == ["rainbow_digits.tasks: must be a whole number (got 8)"]  # type: ignore[arg-type]
    assert option_faults(ImageFolder(data="x", keep=5)) == [
        "image_folder.keep: must be below classes_per_task, 5 (got 5)"
    ]


def test_schedules_from_options() -> None:
    faults = Faults()
    assert from_options(Gradual, {"window": 60}, faults) == Gradual(window=60)
    markov = from_options(Markov, {"hazard": 1}, faults)
    assert markov is not None
    assert (markov, type(markov.hazard)) == (Markov(hazard=1.0), float)
    assert from_options(Markov, {"hazard": "0.2"}, faults, strict=False) == Markov(hazard=0.2)
    assert list(faults) == []
    assert lines(Markov, {"hazzard": 0.1, "hazard": 0.0}) == [
        "markov.hazzard: unknown key (got 0.1); did you mean hazard?",
        "markov.hazard: must be greater than 0 (got 0.0)",
    ]
    assert lines(Sequential, {"window": 3}) == ["sequential.window: unknown key (got 3); known are beside"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "mixed.rate: must be given"),
        ({"rate": True}, "mixed.rate: must be a number (got True)"),
        ({"rate": "1"}, "mixed.rate: must be a number (got '1')"),
        ({"rate": float("nan")}, "mixed.rate: must be a finite number (got nan)"),
        ({"rate": 1, "mode": "slw"}, "mixed.mode: must be 'slow' or 'fast' (got slw)"),
        ({"rate": 1, "parts": 3}, "mixed.parts: must be a list (got 3)"),
        ({"rate": 1, "parts": ["a", 3]}, "mixed.parts[1]: must be text (got 3)"),
        ({"rate": 1, "share": 1}, "mixed.share: must be less than 1 (got 1)"),
    ],
)
def test_each_broken_rule_is_one_line(options: dict[str, Any], line: str) -> None:
    assert lines(Mixed, options) == [line]
    assert lines(Mixed, options, "mine.yaml") == [f"mine.yaml: {line}"]
