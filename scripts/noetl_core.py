"""Run the core set of NoETL's end-to-end fixtures, and print a table with the reason of each failure.

    python scripts/noetl_core.py CHECKOUT [NAME ...]

CHECKOUT is a working tree of the repository `noetl/e2e`; NAME limits the fixtures to those whose path contains it. The
hosts in the fixtures are replaced by servers on loopback: the repository's own `paginated_api.py` (which needs
`fastapi`), a stub of the public sites, and a Postgres server as the tests start it. Each fixture has its own store.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.components import Postgres, free_port  # noqa: E402

TIMEOUT = 120  # seconds per fixture
PAGINATED_HOST = re.compile(r"http://paginated-api\.test-server\.svc\.cluster\.local:5555")
STUBBED_HOSTS = re.compile(
    r"https?://(?:httpbin\.org|jsonplaceholder\.typicode\.com|api\.open-meteo\.com|example\.com|noetl-server-rust[\w.:-]*)"
)
CREDENTIAL = re.compile(r"\b(?:pg_auth|auth|credential): *['\"]?([A-Za-z_]\w*)['\"]? *$", re.MULTILINE)
NOT_RUNNABLE = {
    "auth0_login": "needs an identity provider",
    "google_id_token_comparison_test": "needs Google credentials",
    "google_id_token_test": "needs Google credentials",
    "test_vars_api": "calls the API of a NoETL server",
    "pft_queue_db_maintenance": "needs tables that another system fills",
}


class FixtureOutcome(NamedTuple):
    state: str  # completed, failed, refused or not run
    reason: str


class Stub(BaseHTTPRequestHandler):
    """Answers like the public sites that the fixtures call."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode(errors="replace")
        path = self.path.partition("?")[0]
        status, document = 200, self._document(path, body)
        if path.startswith("/status/"):
            status = int(path.rpartition("/")[2])
        encoded = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def _document(self, path: str, body: str) -> Any:
        if path.startswith(("/posts", "/users")):
            name = path.split("/")[1]
            rows = [
                {"id": n, "userId": 1 + n % 10, "title": f"{name} {n}", "body": "text", "name": "Ann"}
                for n in range(1, 101)
            ]
            single = path.removeprefix(f"/{name}").strip("/")
            return rows[int(single) - 1] if single.isdigit() else rows
        if path.startswith("/v1/forecast"):
            hours = [f"2026-01-31T{hour:02}:00" for hour in range(24)]
            hourly = {"time": hours, "temperature_2m": [20.0 + hour / 2 for hour in range(24)]}
            return {"current_weather": {"temperature": 21.5}, "hourly": hourly}
        try:
            sent: Any = json.loads(body) if body else None
        except ValueError:
            sent = None
        return {"url": self.path, "json": sent, "data": body, "args": {}, "headers": dict(self.headers)}


def core_fixtures(checkout: Path) -> list[str]:
    text = (checkout / "scripts" / "rust_regression_run.sh").read_text()
    listed = text.partition("CORE_FIXTURES=(")[2].partition("\n)")[0]
    return re.findall(r'"([^"]+)"', listed)


def prepare(checkout: Path, folder: Path, paginated: str, stub: str) -> Path:
    """Copy the fixtures, with their hosts replaced."""
    target = folder / "fixtures"
    shutil.copytree(checkout / "fixtures", target)
    for file in target.rglob("*.y*ml"):
        text = file.read_text(errors="replace")
        file.write_text(STUBBED_HOSTS.sub(stub, PAGINATED_HOST.sub(paginated, text)))
    return target


def start_paginated(checkout: Path, port: int) -> subprocess.Popen[bytes]:
    folder = checkout / "fixtures" / "servers"
    command = [sys.executable, "-m", "uvicorn", "paginated_api:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=folder)
    for _ in range(600):
        try:
            urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=1).close()
            return process
        except OSError:
            if process.poll() is not None:
                raise SystemExit("paginated_api.py does not start: pip install fastapi uvicorn") from None
            time.sleep(0.1)
    raise SystemExit("paginated_api.py does not answer")


def runwright(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runwright", *arguments]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )


def run_fixture(file: Path, folder: Path, database: str) -> FixtureOutcome:
    environment = {
        **os.environ,
        **dict.fromkeys(["pg_local", "pg_k8s", *CREDENTIAL.findall(file.read_text(errors="replace"))], database),
    }
    store = ("--store", f"sqlite:///{folder}/runs.db")
    checked = runwright(folder, environment, "plan", "validate", str(file))
    if checked.returncode != 0:
        problems = re.findall(r"[A-Z]+(?:_[A-Z]+)+ .*", checked.stdout + checked.stderr)
        return FixtureOutcome("refused", problems[0] if problems else "unknown")
    try:
        done = runwright(folder, environment, "run", str(file), "--run-id", "r", *store)
    except subprocess.TimeoutExpired:
        return FixtureOutcome("failed", f"did not end within {TIMEOUT} s")
    if done.returncode == 0:
        return FixtureOutcome("completed", "")
    shown = runwright(folder, environment, "show", "r", "--json", *store)
    if shown.returncode != 0:
        return FixtureOutcome("failed", (done.stderr.strip().splitlines() or ["unknown"])[0])
    cause = json.loads(shown.stdout).get("rootCause") or {}
    return FixtureOutcome("failed", f"{cause.get('stepId')}: {cause.get('code')} {cause.get('message') or ''}".strip())


def main(checkout: Path, names: list[str]) -> int:
    outcomes: Counter[str] = Counter()
    postgres, port = Postgres(), free_port()
    stub = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    paginated = start_paginated(checkout, port)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            fixtures = prepare(checkout, folder, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{stub.server_port}")
            for number, path in enumerate(core_fixtures(checkout)):
                if names and not any(name in path for name in names):
                    continue
                name = Path(path).stem
                if name in NOT_RUNNABLE:
                    outcome = FixtureOutcome("not run", NOT_RUNNABLE[name])
                else:
                    own = folder / str(number)
                    own.mkdir()
                    outcome = run_fixture(fixtures.parent / path, own, postgres.create_database(f"core_{number}"))
                outcomes[outcome.state] += 1
                shown = path.removeprefix("fixtures/playbooks/")
                print(f"{outcome.state:10} {shown:70} {outcome.reason[:200]}", flush=True)
    finally:
        paginated.terminate()
        postgres.stop()
    print(", ".join(f"{count} {state}" for state, count in sorted(outcomes.items())), f"of {outcomes.total()}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
