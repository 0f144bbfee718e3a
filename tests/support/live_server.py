"""A server in a separate process, for tests that send it many requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from support.server import HELLO, WAITING

EVERYTHING = ("Admin", "System")
SCOPES = ("events:server", "steps", "metrics")


class LiveServer:
    """A server in a separate process, with a token that has all permissions and two runs to read."""

    def __init__(self, folder: Path) -> None:
        (folder / "runwright.toml").write_text("[server]\nrate = 0\n")
        self._folder = folder
        store = f"sqlite:///{folder}/runs.db"
        self._log = (folder / "server.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runwright", "serve", "--port", "0", "--json", "--no-access-log", "--store", store],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (folder / "server.log").read_text()
        self.address: str = json.loads(line)["address"]
        made = self._post("/v1/tokens", {"name": "tester", "roles": EVERYTHING, "scopes": SCOPES})
        self.token_id: str = made["details"]["tokenId"]
        self.headers = {"Authorization": f"Bearer {made['token']}"}
        self.ended: str = self._post("/v1/runs", {"plan": HELLO, "context": {"runId": "done/by us"}})["runId"]
        self.held: str = self._post("/v1/runs", {"plan": WAITING, "context": {"runId": "held"}})["runId"]
        self._get(f"/v1/runs/{quote(self.ended, safe='')}?wait=30s")

    def _post(self, path: str, body: Any) -> Any:
        headers = getattr(self, "headers", {})
        return httpx.post(self.address + path, json=body, headers=headers, timeout=30).raise_for_status().json()

    def _get(self, path: str) -> Any:
        return httpx.get(self.address + path, headers=self.headers, timeout=60).raise_for_status().json()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def complaints(self) -> list[str]:
        """Return the errors in the log of the server."""
        self._log.flush()
        lines = (self._folder / "server.log").read_text(errors="replace").splitlines()
        return [line for line in lines if '"level":"error"' in line or "Traceback" in line]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
