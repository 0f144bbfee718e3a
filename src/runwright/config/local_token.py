"""The token of a server without tokens, for systems that do not report which user opens a connection.

The server writes it into a file that only its user can read; the command line of the same user finds it by the port.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from runwright.storage.private_files import make_private_folder, open_private


def create_local_token(port: int) -> str:
    """Create the token of the server on this port."""
    token = secrets.token_urlsafe(32)
    path = local_token_path(port)
    make_private_folder(path.parent)
    path.unlink(missing_ok=True)
    with open_private(path, "xb") as file:
        file.write(token.encode())
    return token


def delete_local_token(port: int) -> None:
    local_token_path(port).unlink(missing_ok=True)


def find_local_token(url: str) -> str | None:
    """Return the token of the server at a URL of this machine; None if there is none."""
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "::1", "localhost") or parts.port is None:
        return None
    try:
        return local_token_path(parts.port).read_text()
    except OSError:
        return None


def local_token_path(port: int) -> Path:
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(folder) / "runwright" if folder else Path.home() / ".runwright") / f"server-{port}.token"
