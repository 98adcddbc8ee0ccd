"""Show a sweep in MLflow's UI: `python -m orchestrator.ui [NAME]`.

A sweep in a database needs a server, which is started on this machine's loopback address and runs until Ctrl-C. A
sweep that was tracked by a server is shown by that server.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.storage.journal import recorded_sweeps
from orchestrator.system.processes import end_tree, watched
from orchestrator.tracking import reader
from orchestrator.tracking.database import DEFAULT_URI, server_address, server_environment
from streams.command_line import CommandLine, command
from streams.errors import MASK

LOOPBACK, PORT = "127.0.0.1", 5000
START_S = 300.0
"""Seconds within which MLflow's server must answer; its imports alone take several."""
_POLL_S = 0.2


@contextmanager
def served(uri: str, port: int | None = None) -> Iterator[str]:
    """Inside this block MLflow's server shows a database; yields the server's address.

    Args:
        uri: of the database.
        port: on the loopback address; `PORT` if None, or any free one if that is in use.

    Raises:
        OrchestratorError: the port is in use, or the server does not start.
    """
    port = _free_port() if port is None else port
    _check_free(port)
    words = ["server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    # The URI may hold a password, which arguments of a process show to everyone on this machine.
    environment = os.environ | server_environment(uri)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", "mlflow", *words], stdout=log, stderr=log, env=environment)
        try:
            _await(process, port, log.fileno())
            with watched():
                yield f"http://{LOOPBACK}:{port}"
        finally:
            end_tree(process.pid)
            process.wait()


def _free_port() -> int:
    for port in (PORT, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise OrchestratorError(fault("--port", "", f"no port is free on {LOOPBACK}"))


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just ended counts as gone
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            rule = f"must be a free port on {LOOPBACK} ({error.strerror})"
            raise OrchestratorError(fault("--port", "", rule, port, "leave --port out to take a free one")) from error


def _await(process: subprocess.Popen[bytes], port: int, log: int) -> None:
    """Wait until the server answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach this machine
    until = time.monotonic() + START_S
    while True:
        with suppress(OSError):
            opener.open(f"http://{LOOPBACK}:{port}/health", timeout=_POLL_S * 10).close()
            return
        if process.poll() is not None or time.monotonic() > until:
            size = os.fstat(log).st_size
            lines = os.pread(log, 2_000, max(0, size - 2_000)).decode(errors="replace").split("\n")
            reason = next((line.strip() for line in reversed(lines) if line.strip()), "it prints nothing")
            raise OrchestratorError(fault("foml ui", "", "MLflow's server does not start", reason))
        time.sleep(_POLL_S)


def _open(link: str, browser: bool) -> None:
    """Print the link, and open it where there is a screen for a browser."""
    print(link, flush=True)
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if browser and (sys.platform != "linux" or any(os.environ.get(name) for name in screens)):
        webbrowser.open(link)


def _tracking(
    name: str | None, storage: Path, uri: str | None, experiment: str | None
) -> tuple[str | None, str, str | None]:
    """The name, the URI and the experiment to search: as given, else those of the sweep's folder, else the default."""
    if uri is not None:
        return name, uri, experiment
    recorded = next((each for each in recorded_sweeps(storage) if name in (None, each.resolved["name"])), None)
    if recorded is None:
        return name, DEFAULT_URI, experiment
    tracking = recorded.resolved["tracking"]
    if MASK in tracking["uri"]:
        rule = f"{MASK} stands for user, password or key, which the sweep's folder does not hold"
        raise OrchestratorError(fault("--tracking-uri", "", rule, tracking["uri"], "give the whole address"))
    recorded_experiment = tracking["experiment"] or recorded.resolved["name"]
    if experiment in (None, recorded_experiment):
        # Without the name, the newest run would be searched, and a sweep that is resumed keeps its run.
        return recorded.resolved["name"], tracking["uri"], recorded_experiment
    return name, tracking["uri"], experiment


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.ui") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Show the curves of a sweep in MLflow's UI, until Ctrl-C.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the sweep (default: the one started last)")
    parser.add_argument("--storage", default="results", type=Path, metavar="DIR", help="the folder in which it ran")
    parser.add_argument(
        "--tracking-uri", metavar="URI", help=f"where it was tracked (default: as its folder says, else {DEFAULT_URI})"
    )
    parser.add_argument("--experiment", help="search in this experiment only")
    parser.add_argument("--port", type=int, metavar="N", help=f"default: {PORT}, or a free one if that is in use")
    parser.add_argument("--no-browser", action="store_true", help="print the link, and open no browser")
    options = parser.parse_args(argv)
    if options.port is not None and not 1 <= options.port <= 65_535:
        raise OrchestratorError(fault("--port", "", "must be from 1 to 65535", options.port))
    name, uri, experiment = _tracking(options.name, options.storage, options.tracking_uri, options.experiment)
    server = server_address(uri)
    name, page = reader.find_charts(name, uri, experiment)
    if server is not None:
        _open(f"{server}/{page}", not options.no_browser)
        return ExitCode.SUCCESS
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may start it with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    print(f"{name}: MLflow starts; Ctrl-C ends it", file=sys.stderr)
    with suppress(KeyboardInterrupt), served(uri, options.port) as started:
        _open(f"{started}/{page}", not options.no_browser)
        signal.pause()
    return ExitCode.SUCCESS


if __name__ == "__main__":
    sys.exit(main())
