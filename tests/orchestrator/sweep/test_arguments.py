"""The arguments of the sweep command: which ones it refuses, and that with `--json` a usage error is one document."""

import json

import pytest

from orchestrator.sweep import __main__, api
from orchestrator.sweep.arguments import read


def test_positional_arguments_may_stand_before_and_after_options() -> None:
    arguments = read(["seeds=3", "--plan", "mine.yaml", "--json", "learners[0].K=5"])
    assert (arguments.file, arguments.overrides, arguments.plan, arguments.json) == (
        "mine.yaml",
        ["seeds=3", "learners[0].K=5"],
        True,
        True,
    )


def test_an_unexpected_error_is_one_document_with_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(api, "checked_sweep", fails)
    with pytest.raises(RecursionError):
        __main__.main(["--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["problems"]) == (1, ["unexpected error: RecursionError: too deep"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a.yaml", "b.yaml"], "one sweep at a time (got a.yaml, b.yaml)"),
        (["--resume", "a", "--plan"], "--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it"),
        (["--resume"], "argument --resume: expected one argument"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--detach"], "--detach and --attach need --cluster FILE"),
        (["--cluster", "c", "--attach", "x", "seeds=1"], "--attach takes no other arguments"),
    ],
)
@pytest.mark.parametrize("option", ["--json", "--js", None])
def test_a_usage_error_is_one_document_with_json(
    words: list[str], line: str, option: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main([option, *words] if option else words)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    prog = "python -m orchestrator.sweep"
    assert printed.err == f"{prog}: error: {line}; see {prog} --help\n"
    if option is None:
        assert printed.out == ""
    else:
        content = json.loads(printed.out)
        assert (content["exit_code"], content["problems"], content["sweep"], content["resume"]) == (
            2,
            [line],
            None,
            None,
        )
