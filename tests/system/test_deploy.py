"""Deployment files: units are checked with systemd and run under their own filters, the other files are checked as far
as possible without a container engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from runwright.plans.durations import parse_duration
from runwright.server.settings import read_server_settings
from support.components import Missing, die_with_parent, free_port, have_or_skip
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
UNITS = ["runwright.service", "runwright-worker.service"]
PROGRAM = Path(sys.executable).with_name("runwright")
AFTER_DRAIN = 5 + 4
"""Seconds that a server may need after the drain: for open responses, then for the last appends."""
EXPOSURE = 25
"""Highest exposure that systemd may report, in tenths of its scale from 0 to 10."""


def unit(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def systemd_analyze() -> str:
    def find() -> str:
        program = shutil.which("systemd-analyze")
        if program is None:
            raise Missing("there is no systemd-analyze here")
        return program

    return str(have_or_skip("systemd", find))


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([systemd_analyze(), *arguments], capture_output=True, text=True)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Units in a separate folder, with the path of an existing program."""
    for name in UNITS:
        text = (DEPLOY / name).read_text()
        assert "/opt/runwright/bin/runwright " in text
        (tmp_path / name).write_text(text.replace("/opt/runwright/bin/runwright ", f"{PROGRAM} "))
    return tmp_path


# Units


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(name: str, installed: Path) -> None:
    done = analyze("verify", "--man=no", str(installed / name))
    # Other units are not under test.
    findings = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    assert (done.returncode, findings) == (0, [])


@pytest.mark.parametrize("name", UNITS)
def test_systemd_rates_unit_exposure_below_the_limit(name: str, installed: Path) -> None:
    if "--offline" not in analyze("--help").stdout:
        pytest.skip("systemd: this one cannot judge a unit that is not loaded")
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(installed / name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_unit_is_hardened_and_drains_on_stop(name: str) -> None:
    settings = unit(name)
    assert settings["CapabilityBoundingSet"] == [""]
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["NoNewPrivileges"] == settings["PrivateTmp"] == settings["ProtectHome"] == ["yes"]
    assert settings["User"] != ["root"]
    # The default mode also sends SIGTERM to the steps, which prevents a drain.
    assert settings["KillMode"] == ["mixed"]
    # Without a "-" prefix, a missing file prevents the start.
    assert settings["EnvironmentFile"][0].startswith("/etc/")
    assert settings["WorkingDirectory"] == [f"/var/lib/{settings['StateDirectory'][0]}"]


def test_server_unit_can_see_other_processes() -> None:
    """Requirement for fast recovery: otherwise the lease of a dead process has to expire first."""
    assert not unit("runwright.service").keys() & {"ProtectProc", "ProcSubset"}


def test_service_stop_timeout_exceeds_the_drain() -> None:
    server, worker = (float(unit(name)["TimeoutStopSec"][0]) for name in UNITS)
    assert server > read_server_settings({}).drain + AFTER_DRAIN
    help_text = subprocess.run([PROGRAM, "worker", "--help"], capture_output=True, text=True).stdout
    drain = re.search(r"--drain.*?default:\s+(\w+)", help_text, re.DOTALL)
    assert drain is not None
    assert worker > parse_duration(drain[1]) + AFTER_DRAIN


JAIL = """
import ctypes, os, sys

class Argument(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]

calls, families, memory, *command = sys.argv[1:]
seccomp, libc = ctypes.CDLL("libseccomp.so.2"), ctypes.CDLL(None)
seccomp.seccomp_init.restype = ctypes.c_void_p
allow, refuse, equal = 0x7FFF0000, 0x00050001, 4  # to refuse is to answer EPERM
rules = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(refuse)))
for name in calls.split():
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0 and name != "socket":  # others are of other machines
        assert seccomp.seccomp_rule_add_array(rules, ctypes.c_uint32(allow), number, 0, None) == 0
number = seccomp.seccomp_syscall_resolve_name(b"socket")
for family in map(int, families.split()):
    only = Argument(0, equal, family, 0)
    assert seccomp.seccomp_rule_add_array(rules, ctypes.c_uint32(allow), number, 1, ctypes.byref(only)) == 0
no_new_privileges, no_writable_code = 38, 65
assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
assert memory == "open" or libc.prctl(no_writable_code, 1, 0, 0, 0) == 0
assert seccomp.seccomp_load(rules) == 0
os.execv(command[0], command)
"""


def calls_in(named: str) -> set[str]:
    if not named.startswith("@"):
        return {named}
    found: set[str] = set()
    for line in analyze("syscall-filter", named).stdout.splitlines()[1:]:
        if (word := line.strip()) and not word.startswith("#"):
            found |= calls_in(word)
    return found


def confined(name: str, *command: str) -> list[str]:
    """Return a command that runs under the filters of a unit: system calls, socket families, memory."""
    settings = unit(name)
    calls = calls_in("@default")
    for line in settings["SystemCallFilter"]:
        these = set[str]().union(*map(calls_in, line.removeprefix("~").split()))
        calls = calls - these if line.startswith("~") else calls | these
    families = [str(int(getattr(socket, family))) for family in settings["RestrictAddressFamilies"][0].split()]
    memory = "closed" if settings.get("MemoryDenyWriteExecute") == ["yes"] else "open"
    return [sys.executable, "-c", JAIL, " ".join(sorted(calls)), " ".join(families), memory, str(PROGRAM), *command]


def can_confine() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JAIL, " ".join(calls_in("@system-service")), "1", "closed", "/bin/true"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Missing(f"no filter can be set here: {done.stderr[-300:]}")


@contextlib.contextmanager
def process(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that must exit with 0 within 60 seconds after SIGTERM."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    started = subprocess.Popen(
        command,
        cwd=folder,
        env={**plain, **environment},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    try:
        yield started
        started.terminate()
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.communicate()


def call(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


PROBE = """
import mmap, socket
for what, attempt in (
    ("code", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)),
    ("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)),
    ("loopback", lambda: socket.create_server(("127.0.0.1", 0))),
):
    try:
        attempt()
        print(what, "yes")
    except PermissionError:
        print(what, "no")
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["here", "workers"])
def test_server_and_worker_run_under_their_units_filters(steps: str, tmp_path: Path) -> None:
    have_or_skip("systemd", can_confine)
    (tmp_path / "runwright.toml").write_text(f'[server]\nsteps = "{steps}"\n')
    (tmp_path / "probe.py").write_text(PROBE)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    plan = {"plan": "probe", "steps": [{"id": "probe", "shell": f"{sys.executable} probe.py | sort"}]}
    with contextlib.ExitStack() as stack:
        command = confined(UNITS[0], "serve", "--port", str(port))
        server = stack.enter_context(process(command, tmp_path))
        assert server.stdout is not None
        assert server.stdout.readline() == f"Runwright serves {address}\n"
        assert call(address, "/readyz")["status"] == "ok"
        assert healthy(port)
        if steps == "workers":
            stack.enter_context(process(confined(UNITS[1], "worker"), tmp_path, RUNWRIGHT_SERVER=address))
        run_id = call(address, "/v1/runs", {"plan": plan})["runId"]
        assert call(address, f"/v1/runs/{run_id}?wait=60s")["status"] == "COMPLETED"
    assert not healthy(port)
    printed = subprocess.run([PROGRAM, "logs", run_id], cwd=tmp_path, capture_output=True, text=True).stdout
    code = "no" if steps == "here" else "yes"
    assert re.findall(r"\w+ (?:yes|no)", printed) == [f"code {code}", "loopback yes", "packets no"]


# The image


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def last_stage() -> dict[str, str]:
    """Return the last of each instruction in the final stage, which becomes the image."""
    found: dict[str, str] = {}
    for word, rest in instructions():
        found = {} if word == "FROM" else found
        found[word] = rest
    return found


def exec_form(text: str) -> list[str]:
    arguments = json.loads(text)
    assert isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)
    return arguments


def healthy(port: int) -> bool:
    """Return whether the HEALTHCHECK of the image succeeds for a server at this port."""
    program, *arguments = exec_form(last_stage()["HEALTHCHECK"].partition(" CMD ")[2])
    assert program == "python" and "/healthz" in arguments[-1]
    check = [word.replace(":8484/", f":{port}/") for word in arguments]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}  # A proxy must not affect the check.
    return subprocess.run([sys.executable, *check], env=environment, capture_output=True).returncode == 0


def is_sent(path: str) -> bool:
    """Return whether .dockerignore includes this path in the build context: the last matching line decides."""
    sent, place = True, Path(path)
    names = [str(part) for part in (place, *place.parents) if str(part) != "."]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and any(fnmatch(name, line.removeprefix("!")) for name in names):
            sent = line.startswith("!")
    return sent


def test_image_runs_without_root_and_receives_signals() -> None:
    image = last_stage()
    user = image["USER"].partition(":")[0]
    assert user.isdigit() and int(user) != 0  # An orchestrator can verify that a number is not root.
    assert exec_form(image["ENTRYPOINT"]) == ["runwright"]
    assert exec_form(image["CMD"]) == ["serve", "--host", "0.0.0.0"]
    assert image["STOPSIGNAL"] == "SIGTERM"


def test_image_is_built_from_files_of_the_repository() -> None:
    assert not [rest for word, rest in instructions() if word == "ADD"]  # Unlike ADD, COPY never downloads files.
    copied = [rest.split() for word, rest in instructions() if word == "COPY"]
    sources = [source for arguments in copied if not arguments[0].startswith("--from=") for source in arguments[:-1]]
    assert "src/" in sources
    for source in sources:
        assert not source.startswith("--") and "://" not in source
        assert (ROOT / source).exists() and is_sent(source.rstrip("/")), source
    assert os.access(DEPLOY / "init.sh", os.X_OK)


def test_packages_have_hashes_and_base_images_have_versions() -> None:
    runs = [rest for word, rest in instructions() if word == "RUN"]
    assert any("--require-hashes -r requirements/server.txt" in rest for rest in runs)
    stages = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(stages) > 1
    assert all(re.fullmatch(r"[a-z]+:\d[\w.-]+", base) for base in stages)


@pytest.mark.parametrize("path", [".git/config", ".venv/bin/python", "deploy/secrets/postgres_password", "tests/x.py"])
def test_build_context_excludes_unneeded_files(path: str) -> None:
    assert not is_sent(path)


# Compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def is_checked(service: dict[str, Any]) -> bool:
    """Return whether a service has a health check, of its own or of its image."""
    check = service.get("healthcheck")
    return "HEALTHCHECK" in last_stage() and "build" in service if check is None else not check.get("disable")


def test_every_service_has_an_image_or_a_build(compose: dict[str, Any]) -> None:
    assert compose["services"].keys() == {"postgres", "init", "server-1", "server-2", "worker"}
    assert compose["services"]["worker"]["deploy"]["replicas"] == 2
    for service in compose["services"].values():
        assert service.get("image") or service.get("build")
        build = service.get("build")
        if build is not None:
            context = DEPLOY / build["context"]
            assert (context / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
            assert context.samefile(ROOT)


def test_compose_file_contains_no_secret(compose: dict[str, Any]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"://[^/\s:@]*:[^/\s@]+@", text)  # Addresses contain no password.
    assert "rwt_" not in text  # Tokens have this prefix.
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            secret = re.search("PASSWORD|TOKEN|SECRET|KEY", name)
            assert not secret or (name.endswith("_FILE") and value.startswith("/run/"))
        assert set(service.get("secrets", ())) <= compose["secrets"].keys()
    assert all(secret.keys() == {"file"} for secret in compose["secrets"].values())
    assert not re.search(r"PASSWORD=|TOKEN=", (DEPLOY / ".env.example").read_text())


def test_services_wait_only_for_observable_conditions(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert is_checked(services[name]), name
            else:
                assert wait["condition"] == "service_completed_successfully"
                assert services[name]["restart"] == "no"
    for name in ("server-1", "server-2", "worker"):
        assert services[name]["depends_on"]["init"]["condition"] == "service_completed_successfully"


def test_data_is_in_named_volumes_hidden_from_workers(compose: dict[str, Any]) -> None:
    used = {
        name: {mount.split(":")[0] for mount in service.get("volumes", ())}
        for name, service in compose["services"].items()
    }
    assert set().union(*used.values()) == compose["volumes"].keys()
    assert "database" in used["postgres"]
    assert not used["worker"] & (used["server-1"] | used["postgres"])  # A worker has no access to the store.
    assert not set(compose["services"]["worker"]["networks"]) & set(compose["services"]["postgres"]["networks"])
    for config in compose["configs"].values():
        assert (DEPLOY / config["file"]).exists()


def test_containers_have_few_privileges_and_only_local_ports(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if name != "postgres":
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert ("user" in service) == (name == "init")


def test_container_stop_grace_period_exceeds_the_drain(compose: dict[str, Any]) -> None:
    settings = read_server_settings(tomllib.loads((DEPLOY / "runwright.toml").read_text())["server"])
    assert settings.steps == "workers"
    for name in ("server-1", "server-2"):
        assert parse_duration(compose["services"][name]["stop_grace_period"]) > settings.drain + AFTER_DRAIN
    worker = compose["services"]["worker"]
    drain = re.search(r"--drain (\w+)", worker["command"][0])
    assert drain is not None
    assert parse_duration(worker["stop_grace_period"]) > parse_duration(drain[1]) + AFTER_DRAIN


def test_worker_gets_its_token_and_replaces_the_shell(compose: dict[str, Any], tmp_path: Path) -> None:
    worker = compose["services"]["worker"]
    (tmp_path / "token").write_text("a-token\n")
    stub = tmp_path / "runwright"
    stub.write_text('#!/bin/sh\necho "$$ $RUNWRIGHT_TOKEN $*"\n')
    stub.chmod(0o755)
    script = worker["command"][0].replace("$$", "$").replace("/run/runwright/worker", str(tmp_path))
    started = subprocess.Popen(
        [*worker["entrypoint"], script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = started.communicate(timeout=30)
    assert output.startswith(f"{started.pid} a-token worker --server http://server-1:8484 ")
    (tmp_path / "token").unlink()
    assert subprocess.run([*worker["entrypoint"], script], capture_output=True).returncode != 0


# Initialization


class Init:
    """init.sh, with a folder in place of its volumes."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        for name in ("store", "worker", "admin"):
            (folder / name).mkdir()
        self.set_password("s3cret-of~Postgres")

    def set_password(self, text: str) -> None:
        (self.folder / "password").write_text(text + "\n")

    def run(self, expected: int = 0) -> str:
        done = subprocess.run(
            [DEPLOY / "init.sh"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={
                "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
                "RUNWRIGHT_STORE": self.store,
                "POSTGRES_PASSWORD_FILE": str(self.folder / "password"),
                "RUNWRIGHT_INIT_HOME": str(self.folder),
                "RUNWRIGHT_INIT_OWNER": f"{os.getuid()}:{os.getgid()}",
            },
        )
        assert done.returncode == expected, done.stderr
        return done.stderr

    def stored_files(self) -> dict[str, str]:
        files = [path for name in ("store", "worker", "admin") for path in (self.folder / name).iterdir()]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
        return {f"{path.parent.name}/{path.name}": path.read_text().strip() for path in files}

    def tokens(self) -> list[tuple[str, list[str]]]:
        output = subprocess.run(
            [PROGRAM, "token", "list", "--json", "--store", self.store], capture_output=True, text=True, check=True
        ).stdout
        return sorted((token["name"], [*token["roles"], *token["scopes"]]) for token in json.loads(output))


@pytest.mark.slow
def test_init_creates_the_admin_token_once_in_a_private_file(empty_postgres_url: str, tmp_path: Path) -> None:
    init = Init(tmp_path, empty_postgres_url)
    init.run()
    first = init.stored_files()
    assert first.keys() == {"store/pgpass", "worker/token", "admin/token"}
    assert first["store/pgpass"] == "*:*:*:*:s3cret-of~Postgres"
    assert init.tokens() == [("admin", ["Admin"]), ("workers", ["steps"])]

    init.run()
    assert init.stored_files() == first

    (tmp_path / "admin" / "token").unlink()  # The operator moved it to a safe place.
    (tmp_path / "worker" / "token").unlink()  # It was lost.
    init.run()
    assert init.stored_files().keys() == {"store/pgpass", "worker/token"}
    admin, first_workers, second_workers = [name for name, _ in init.tokens()]
    assert (admin, first_workers) == ("admin", "workers")
    assert second_workers.startswith("workers-2")


@pytest.mark.slow
def test_init_creates_no_token_if_the_store_is_unavailable(tmp_path: Path) -> None:
    init = Init(tmp_path, f"postgresql://runwright@127.0.0.1:{free_port()}/runwright")
    assert "STORE_UNAVAILABLE" in init.run(expected=3)
    assert init.stored_files().keys() == {"store/pgpass"}


@pytest.mark.parametrize("password", ["", "with:colon", "with space", "back\\slash", "two\nlines"])
def test_init_refuses_passwords_that_pgpass_cannot_hold(password: str, tmp_path: Path) -> None:
    init = Init(tmp_path, "memory://")
    init.set_password(password)
    assert "letters, digits" in init.run(expected=2)
    assert init.stored_files() == {}
