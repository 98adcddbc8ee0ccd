"""Strict YAML and `key=value` words: invalid input is one line, never a traceback."""

from pathlib import Path

import pytest
import yaml

from orchestrator.config.strict_yaml import CommaSeparated, overridden, read_yaml
from orchestrator.errors import ConfigError
from streams.yaml_values import as_yaml, parsed


def test_a_number_with_an_exponent_is_a_number() -> None:
    """In YAML 1.1 these are text."""
    assert [parsed(text) for text in ("1e-2", "-2E3", "1.5e+2")] == [0.01, -2000.0, 150.0]


@pytest.mark.parametrize(
    "text", ["1e3", "-1_0E+5", "1.e5", "1e", "010", "08", "1:30", "1", "yes", "null", "~", "", "=", "<<"]
)
def test_text_that_looks_like_another_value_is_written_as_text(text: str) -> None:
    assert parsed(as_yaml({"text": text, text: [1e3, 1e-05, 1e22]})) == {"text": text, text: [1e3, 1e-05, 1e22]}


def test_words_change_a_copy() -> None:
    document = {"seeds": 3, "learners": [{"name": "foml", "K": 1}]}
    changed = overridden(document, ["seeds=[4]", "learners[0].K={grid: [2, 3]}", "search.samples=2"])
    learners = [{"name": "foml", "K": {"grid": [2, 3]}}]
    assert changed == {"seeds": [4], "learners": learners, "search": {"samples": 2}}
    assert document == {"seeds": 3, "learners": [{"name": "foml", "K": 1}]}


def test_every_bad_word_is_a_fault_of_the_command_line() -> None:
    with pytest.raises(ConfigError) as caught:
        overridden({"seeds": 3, "learners": [{}]}, ["seeds", "learners[7].K=1", "=3", "seeds=[1", "learners.K=1"])
    form = "must be written key=value, such as seeds=3 or foml.K=5"
    assert caught.value.faults == (
        f"command line: =3: {form}",
        f"command line: seeds: {form}",
        "command line: seeds: must be a YAML value (got [1)",
        "command line: learners.K: learners has no such part (got learners.K)",
        "command line: learners[7].K: learners has no such part (got learners[7])",
    )
    with pytest.raises(ConfigError) as caught:
        overridden({"learners": [5, "foml"]}, ["learners.0.K=1,5", "learners[1].K.grid=[1]"])
    assert caught.value.faults == (
        "command line: learners.0.K: learners[0] has no such part (got learners[0].K)",
        "command line: learners[1].K.grid: learners[1] has no such part (got learners[1].K)",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,5,10", [1, 5, 10]),
        ("1, 1e-2", [1, 0.01]),
        ("adam,sgd", ["adam", "sgd"]),
        ("true,false", [True, False]),
        ("5", 5),
        ("'a,b'", "a,b"),
        ("[1, 5]", [1, 5]),
        ("{grid: [1, 5]}", {"grid": [1, 5]}),
    ],
)
def test_commas_separate_the_values_of_a_learners_option(text: str, value: object) -> None:
    changed = overridden({"learners": [{"name": "foml"}]}, [f"foml.x={text}"])["learners"][0]["x"]
    assert changed == value
    assert isinstance(changed, CommaSeparated) == ("," in text and text[0] not in "'[{")


def test_commas_make_a_list_of_keys_that_take_one_and_are_text_elsewhere() -> None:
    changed = overridden({}, ["seeds=0,1,7", "search.scheduler.mutate=alpha1,beta1", "name=a,b"])
    assert changed == {"seeds": [0, 1, 7], "search": {"scheduler": {"mutate": ["alpha1", "beta1"]}}, "name": "a,b"}
    assert type(changed["seeds"]) is list


@pytest.mark.parametrize("text", ["1,", ",1", "1,,5", "1,010"])
def test_a_wrong_value_between_commas_is_a_fault(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden({"learners": [{"name": "foml"}]}, [f"foml.K={text}"])
    assert caught.value.faults == (f"command line: foml.K: must be a YAML value (got {text})",)


def test_a_key_is_given_once() -> None:
    """As in a file; repeating the same word is allowed."""
    with pytest.raises(ConfigError) as caught:
        overridden({}, ["seeds=3", "seeds=4", "name=x", "name=x"])
    assert caught.value.faults == ("command line: seeds: must be given once",)
    assert overridden({}, ["seeds=3", "seeds=3"]) == {"seeds": 3}


@pytest.mark.parametrize("key", ["learners[1].K", "learners.1.K", "foml.K", "learners[1][K]"])
def test_keys_without_brackets(key: str) -> None:
    document = {"learners": [{"name": "online"}, {"name": "foml", "K": 1}, {"name": "my.own"}, {"name": "my.own"}]}
    assert overridden(document, [f"{key}=3"])["learners"][1] == {"name": "foml", "K": 3}
    assert overridden(document, ["my.owner=3"])["my"] == {"owner": 3}


def test_a_learner_is_named_where_its_name_is_unique() -> None:
    document = {"learners": [{"name": "my.own"}, {"name": "foml"}, {"name": "foml"}]}
    assert overridden(document, ["my.own.decay=3"])["learners"][0] == {"name": "my.own", "decay": 3}
    with pytest.raises(ConfigError) as caught:
        overridden(document, ["foml.K=1", "learners.0.decay=1", "my.own.decay=2"])
    assert caught.value.faults == (
        "command line: foml.K: must name one learner, and foml is 2 of them; write learners.1.K",
        "command line: learners[0].decay: must be given once",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: {{ n }}", "1, column 8: must be YAML: a key must be text; a template such as {{ name }} must be filled in or quoted"),
        ("? [a]\n: 1", "1, column 3: must be YAML: a key must be text; a template such as {{ name }} must be filled in or quoted"),
        (f"seeds: {'1' * 5000}", f"1, column 8: must be YAML: must be a valid int (got '{'1' * 37}...')"),
        ("seeds: &a [*a]", "1, column 12: must be YAML: *a must not stand inside the value that it repeats"),
        (f"a: {'[' * 3000}{']' * 3000}", "1, column 53: must be YAML: must have at most 50 lists and mappings inside each other"),
        ("seeds: 010", "1, column 8: must be YAML: YAML reads 010 in base 8; write a decimal number, or '010' for text"),
        ("seeds: 1:30", "1, column 8: must be YAML: YAML reads 1:30 in base 60; write a decimal number, or '1:30' for text"),
        ("name: 2020-13-45", "1, column 7: must be YAML: must be a valid timestamp (got '2020-13-45')"),
        ("name: !!bool maybe", "1, column 7: must be YAML: must be a valid bool (got 'maybe')"),
        ("a: 1\na: 2", "2, column 1: must be YAML: key a is written twice"),
    ],
)  # fmt: skip
def test_yaml_that_no_sweep_can_be(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path, "mine.yaml")
    assert caught.value.faults == (f"mine.yaml: line {expected}",)


NINE_LEVELS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
)
MERGED = "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9))])


@pytest.mark.parametrize("text", [NINE_LEVELS, MERGED, f"a: [{'1, ' * 30_000}]"])
def test_the_number_of_values_is_bounded(text: str) -> None:
    with pytest.raises(
        yaml.YAMLError, match="must have at most 20,000 keys and values, with those that aliases repeat"
    ):
        parsed(text)
    with pytest.raises(yaml.YAMLError, match="must have at most 500,000 characters"):
        parsed("#" * 600_000)


def test_aliases_and_merge_keys() -> None:
    text = "[&a {name: foml, K: 1}, &b {<<: *a, K: 2}, {<<: *b, alpha1: 0.1}, {<<: [*a, *b], K: 3}, *a]"
    first = {"name": "foml", "K": 1}
    assert parsed(text) == [
        first,
        {"name": "foml", "K": 2},
        {"name": "foml", "K": 2, "alpha1": 0.1},
        {"name": "foml", "K": 3},
        first,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [", "must be YAML"),
        ("name: x\nname: y\n", "key name is written twice"),
        ("- 1\n", "must hold keys and values"),
        ("", "must hold keys and values"),
    ],
)
def test_a_file_that_is_not_a_sweep(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path, "mine.yaml")
    (line,) = caught.value.faults
    assert line.startswith("mine.yaml: ")
    assert expected in line


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a readable YAML file"):
        read_yaml(tmp_path / "none.yaml", "none.yaml")


@pytest.mark.parametrize(
    ("document", "words", "changed"),
    [
        ({"network": "mlp"}, ["network.hidden=32"], {"network": {"name": "mlp", "hidden": 32}}),
        ({}, ["network.hidden=32", "network=mlp"], {"network": {"name": "mlp", "hidden": 32}}),
        ({}, ["network=mlp", "network.hidden=32"], {"network": {"name": "mlp", "hidden": 32}}),
        (
            {},
            ["learners[0].K=2", "learners[0]={name: foml}", "learners=[{}]"],
            {"learners": [{"name": "foml", "K": 2}]},
        ),
        ({"network": None}, ["network.init=he"], {"network": {"init": "he"}}),
        ({"objective": "online_error"}, ["objective.last=3"], {"objective": {"metric": "online_error", "last": 3}}),
        (
            {"search": {"scheduler": "asha"}},
            ["search.scheduler.grace=0.2"],
            {"search": {"scheduler": {"name": "asha", "grace": 0.2}}},
        ),
        (
            {"network": "mlp"},
            ["network.name=rainbow", "network.init=he"],
            {"network": {"name": "rainbow", "init": "he"}},
        ),
    ],
)
def test_an_option_of_a_part_that_is_a_name_alone(
    document: dict[str, object], words: list[str], changed: dict[str, object]
) -> None:
    assert overridden(document, words) == changed
