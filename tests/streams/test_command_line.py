"""The form of every command line: help, usage errors, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streams import build, inspect, verify
from streams.command_line import CommandLine, command
from streams.errors import StoreError, UserError

HELP = """\
usage: foml sort [-h] [--by KEY] [--from DIR] [--quiet] [--skip FILE]
                 [FILE ...]

Sort files.

positional arguments:
  FILE         the files

options:
  -h, --help   show this help message and exit
  --by KEY     what to sort by (default: size)
  --from DIR   where they are (default: here)
  --quiet      print no line
  --skip FILE  can be repeated

exit codes:
  0    success
  3    nothing to sort
"""


def sort_command(prog: str = "foml sort") -> CommandLine:
    parser = CommandLine(prog, "Sort files.", {0: "success", 3: "nothing to sort"})
    parser.add_argument("files", nargs="*", metavar="FILE", help="the files")
    parser.add_argument("--by", default="size", metavar="KEY", help="what to sort by")
    parser.add_argument("--from", metavar="DIR", help="where they are (default: here)")
    parser.add_argument("--quiet", action="store_true", help="print no line")
    parser.add_argument("--skip", action="append", default=[], metavar="FILE", help="can be repeated")
    return parser


def test_help_states_defaults_and_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        sort_command().parse_args(["--help"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == HELP


def test_positional_arguments_may_surround_options() -> None:
    arguments = sort_command().parse_args(["a", "--by", "name", "b", "--quiet", "c"])
    assert (arguments.files, arguments.by, arguments.quiet) == (["a", "b", "c"], "name", True)
    assert sort_command().parse_args([]).files == []


@pytest.mark.parametrize("prog", ["foml sort", "python -m sort"])
def test_a_usage_error_is_one_line_that_names_the_help(prog: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        sort_command(prog).parse_args(["a", "--by"])
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == f"{prog}: error: argument --by: expected one argument; see {prog} --help\n"
    assert captured.out == ""


def test_errors_of_the_user_and_interrupts_become_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    class FullError(UserError):
        exit_code = 130

    @command
    def main(error: type[BaseException] | None = None) -> int:
        if error is not None:
            raise error("one line", "another line")
        return 7

    assert main() == 7
    assert capsys.readouterr().err == ""
    assert [main(StoreError), main(error=FullError)] == [2, 130]
    assert capsys.readouterr().err == "one line\nanother line\n" * 2
    assert main(KeyboardInterrupt) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(ZeroDivisionError):
        main(ZeroDivisionError)


@pytest.mark.parametrize("module", [build, inspect, verify])
def test_commands_of_streams_use_it(module: object, capsys: pytest.CaptureFixture[str]) -> None:
    for prog in ("foml x", f"python -m {module.__name__}"):  # type: ignore[attr-defined]
        with pytest.raises(SystemExit) as exit_info:
            module.main([], prog) if prog == "foml x" else module.main([])  # type: ignore[attr-defined]
        assert exit_info.value.code == 2
        assert capsys.readouterr().err.startswith(f"{prog}: error: the following arguments are required: ")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("streams.build", []),
        ("orchestrator.sweep", []),
        ("orchestrator.report", []),
        ("orchestrator.doctor", []),
        ("orchestrator.predict", []),
        ("orchestrator.cli", ["sweep"]),
    ],
)
def test_a_ctrl_c_while_a_command_imports_is_one_line(module: str, words: list[str], tmp_path: Path) -> None:
    """A module in the current folder stands in for NumPy, which every command imports."""
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{path}".rstrip(os.pathsep)},
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "interrupted" and "Traceback" not in done.stderr


def test_a_second_ctrl_c_while_the_first_is_reported_is_exit_code_130(tmp_path: Path) -> None:
    (tmp_path / "streams_of_mine.py").write_text("import streams, sys; print(sys.excepthook is sys.__excepthook__)")
    script = """
import os, signal, time
from streams.command_line import set_up_command
set_up_command()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("the first")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{tmp_path}"}
    twice, other = (
        subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=180, env=environment)
        for words in (["-c", script], ["-m", "streams_of_mine"])
    )
    assert (twice.returncode, twice.stdout, twice.stderr) == (130, "the first\n", "interrupted\n")
    assert other.stdout == "True\n"  # a process of someone else's keeps its traceback


def test_a_command_collects_garbage_less_often_and_not_at_its_end() -> None:
    script = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0] == 10_000, gc.get_freeze_count() > 1000))
from streams.command_line import set_up_command
"""
    command, other = (
        subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=180, cwd=Path(__file__).parents[2]
        )
        for text in (f"{script}set_up_command()", script)
    )
    assert command.stdout == "True True\n", command.stderr
    assert other.stdout == "False False\n", other.stderr
