"""The `foml` command: its help and version, what it imports, and that each subcommand is the `python -m` command."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from orchestrator import cli

ROOT = Path(__file__).parents[2]


def test_the_command_is_installed_and_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"foml": "orchestrator.cli:main"}
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"foml {project['version']}\n"


def test_help_lists_every_command_and_loads_no_heavy_library() -> None:
    code = (
        "import sys; from orchestrator import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'ray', 'mlflow', 'optuna', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.stdout.startswith("usage: foml [-h] [--version] COMMAND\n"), done.stderr
    assert done.stdout.endswith("\n[]\n")
    assert [line.split()[0] for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0] in cli.COMMANDS] == [
        "sweep", "list", "show", "report", "ui", "predict", "rerun", "regret", "doctor", "ship", "build", "inspect", "verify",
    ]  # fmt: skip


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_in_one_form_under_both_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = cli.COMMANDS[name][0]
    texts = []
    for run, prog in (
        (lambda: cli.main([name, "--help"]), f"foml {name}"),
        (lambda: import_module(module).main(["--help"]), f"python -m {module.removesuffix('.__main__')}"),
    ):
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: {prog} [-h]") and "\nexit codes:\n  0    " in text
        texts.append(" ".join(text.replace(prog, "PROG").split()))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["swep"], "argument COMMAND: invalid choice: 'swep'"),
        (["--quiet", "sweep"], "unrecognized arguments: --quiet"),
    ],
)
def test_an_unknown_command_is_a_usage_error(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options", "printed"),
    [
        (["-m", "orchestrator.sweep"], ["--plan", "--quiet"], "3 trials"),
        (["-m", "orchestrator.cli", "show"], [], "decay"),
    ],
)
def test_folders_of_the_user_do_not_shadow_the_packages(
    tmp_path: Path, command: list[str], options: list[str], printed: str
) -> None:
    """The user's module is found beside the YAML, from any folder."""
    for name in ("learners", "streams", "tune_configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
    words = [*command, str(ROOT / "examples/own_learner.yaml"), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FOML_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert printed in done.stdout
