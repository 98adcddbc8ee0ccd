"""A PostgreSQL server of the tests' own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgresql_uri() -> Iterator[str]:
    """The URI of a new, empty database of a new server, which accepts connections through a socket of its folder only."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("not installed: postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="foml-postgresql-"))  # not in pytest's folder, which that user cannot read
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    server, data = str(programs[-1] / "pg_ctl"), str(folder / "data")

    def call(*words: str) -> None:
        log = subprocess.run(words, user=user, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert log.returncode == 0, log.stdout.decode()

    try:
        call(server, "-D", data, "initdb", "-o", "-U foml --auth=trust --no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        call(server, "-D", data, "-l", str(folder / "log"), "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg2://foml@/postgres?host={folder}"
        finally:
            call(server, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
