"""A server without tokens is open to its own user, and to no other user of the machine."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from runwright.client.remote_operations import open_remote
from runwright.config.local_token import local_token_path
from runwright.server.local_peer import can_find_uid, find_peer_uid
from support.server import running_server, server_in_thread

pytestmark = pytest.mark.skipif(not can_find_uid(), reason="the kernel does not list the owners of sockets")

REQUEST = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1] + "/v1/runs").status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_of_the_machine_are_refused(tmp_path: Path) -> None:
    with server_in_thread(f"sqlite:///{tmp_path}/runs.db") as address:
        for user, expected in ((65534, "401"), (0, "200")):
            done = subprocess.run(
                ["/usr/bin/env", "python3", "-c", REQUEST, address], user=user, capture_output=True, text=True, cwd="/"
            )
            assert done.stdout.startswith(expected), done
            assert user == 0 or "AUTHN_REQUIRED" in done.stdout


def test_owner_of_a_connection_is_found() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listener, socket.socket(family) as client:
            listener.bind((host, 0))
            listener.listen()
            client.connect(listener.getsockname()[:2])
            with listener.accept()[0] as accepted:
                here, there = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert find_peer_uid(here, there) == os.geteuid()
                client.close()
                assert find_peer_uid(here, there) is None


async def test_elsewhere_the_user_is_known_by_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runwright.server.main.can_find_uid", lambda: False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with running_server(f"sqlite:///{tmp_path}/runs.db") as server:
        path = local_token_path(int(server.address.rpartition(":")[2]))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await server.caller().get("/v1/runs", 401))["code"] == "AUTHN_REQUIRED"
        assert (await server.caller("wrong").get("/v1/runs", 401))["code"] == "AUTHN_FAILED"
        mine = server.caller(path.read_text())
        await mine.run()
        async with open_remote(server.address, None) as operations:  # as the command line does
            assert len((await operations.log.list_runs()).runs) == 1
        await server.caller_with("Admin")
        assert (await mine.get("/v1/runs", 401))["code"] == "AUTHN_FAILED"
    assert not path.exists()
