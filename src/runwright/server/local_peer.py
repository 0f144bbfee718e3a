"""The user at the other end of a loopback connection, from the tables of the Linux kernel.

TCP does not carry a user. On Linux the kernel lists every socket with its owner.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

PEER_UID_KEY = "runwright.peer_uid"
"""Key in the ASGI scope: a function that returns the user id of the caller, or None if it is not known."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9  # columns

Address = tuple[str, int]


def can_find_uid() -> bool:
    return sys.platform == "linux" and _TABLES[0].exists()


def is_own_user(uid: int | None) -> bool:
    """Whether this is the user of this process, or root, who can become every user."""
    return uid is not None and uid in (os.geteuid(), 0)


def find_peer_uid(client: Address, server: Address) -> int | None:
    """Return the owner of the client's socket; None if it is not open any more, or belongs to another machine."""
    wanted = {(_encode(client, mapped), _encode(server, mapped)) for mapped in (False, True)}
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if (columns[_LOCAL], columns[_REMOTE]) in wanted and columns[_INODE] != "0":  # 0: already closed
                return int(columns[_UID])
    return None


def _encode(address: Address, mapped: bool) -> str:
    """Return an address as the kernel writes it: each word of 32 bits in the byte order of the machine."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    packed = ip.packed
    if mapped and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    words = [int.from_bytes(packed[start : start + 4], sys.byteorder) for start in range(0, len(packed), 4)]
    return f"{''.join(f'{word:08X}' for word in words)}:{address[1]:04X}"
