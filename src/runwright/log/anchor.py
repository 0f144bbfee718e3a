"""Anchors: a signed statement of where every run stood, to be kept somewhere else.

A hash chain shows edits, but not a cut tail, a deleted run, or a history chained anew from the start.
An anchor made before shows those too. It lists (run, last event, its hash) for every run, and signs a
root over the list with Ed25519. Whoever holds an old anchor and the public key needs to trust nobody.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import from_micros
from runwright.core.chain import pack
from runwright.core.verify import Finding

from .reader import LogReader

FORMAT = "runwright-anchor/1"
KEY_FILE = "anchor-key.pem"


class Anchor(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    format: str
    created_at: str
    runs: list[tuple[str, int, str]]  # run id, last event, hash of it; sorted by run id
    root: str
    public_key: str
    signature: str

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def fingerprint(self) -> str:
        """A short name for the key that signed this."""
        return sha256(bytes.fromhex(self.public_key)).hexdigest()[:16]


def root_of(runs: list[tuple[str, int, str]]) -> bytes:
    """SHA-256 over the entries, each as run id, sequence number and hash, each with its length in front."""
    digest = sha256()
    for run_id, seq, head in runs:
        digest.update(pack((run_id.encode(), str(seq).encode(), bytes.fromhex(head))))
    return digest.digest()


def _signed_bytes(created_at: str, root: bytes) -> bytes:
    return pack((FORMAT.encode(), created_at.encode(), root))


async def make_anchor(log: LogReader, key: Ed25519PrivateKey) -> Anchor:
    runs = sorted([(run_id, seq, head.hex()) async for run_id, seq, head in log.heads()])
    root, created_at = root_of(runs), from_micros(log.clock.now())
    return Anchor(
        FORMAT,
        created_at,
        runs,
        root.hex(),
        public_bytes(key.public_key()).hex(),
        key.sign(_signed_bytes(created_at, root)).hex(),
    )


def read_anchor(content: bytes, trusted: Ed25519PublicKey | None = None) -> Anchor:
    """An anchor whose list, root and signature fit together, and whose key is the trusted one if that is given."""
    try:
        anchor = msgspec.json.decode(content, type=Anchor)
        root, signature = bytes.fromhex(anchor.root), bytes.fromhex(anchor.signature)
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(anchor.public_key))
        whole = anchor.format == FORMAT and root_of(anchor.runs) == root
    except (msgspec.DecodeError, UnicodeError, ValueError, RecursionError):
        raise _invalid("This file is not an anchor. `runwright anchor -o FILE` makes one.") from None
    if not whole:
        raise _invalid("The anchor's list of runs does not give its root: the file was changed.")
    try:
        signer.verify(signature, _signed_bytes(anchor.created_at, root))
    except InvalidSignature:
        raise _invalid("The anchor's signature does not hold: the file was changed.") from None
    if trusted is not None and public_bytes(trusted) != public_bytes(signer):
        raise _invalid(f"The anchor was signed by another key ({anchor.fingerprint}). Name the right one with --key.")
    return anchor


async def compare(log: LogReader, anchor: Anchor) -> AsyncIterator[Finding]:
    """Runs that are no longer what the anchor says they were. Having grown since is fine."""
    heads = {run_id: seq async for run_id, seq, _ in log.heads()}
    for run_id, seq, head in anchor.runs:
        last = heads.get(run_id)
        if last is None:
            yield Finding(run_id, "MISSING", f"the run was deleted; the anchor knows it with {seq} events")
        elif last < seq:
            yield Finding(
                run_id, "MISSING", f"the history was cut after event {last}; the anchor knows {seq}", last + 1
            )
        elif seq and await log.hash_at(run_id, seq) != bytes.fromhex(head):
            yield Finding(run_id, "CHANGED", "the history up to here was chained anew since the anchor", seq)


def load_or_make_key(folder: Path) -> Ed25519PrivateKey:
    """The key of a state folder, made on first use, readable by its owner only."""
    path = folder / KEY_FILE
    if path.exists():
        return load_key(path)
    key = Ed25519PrivateKey.generate()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with NamedTemporaryFile(dir=folder, prefix=KEY_FILE) as file:  # readable by its owner only
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
            os.link(file.name, path)  # whole or not at all, and never over another one
    except FileExistsError:
        return load_key(path)
    except OSError as error:
        raise _invalid(f"No key can be made in {folder}: {error.strerror}.") from None
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise _invalid(f"{path} cannot be used as a signing key: {error}.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _invalid(f"{path} is not an Ed25519 key.")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """The public key of a PEM file, be it of the public or of the private key."""
    try:
        content = path.read_bytes()
        key = load_pem_public_key(content) if b"PUBLIC KEY" in content else load_key(path).public_key()
    except (OSError, ValueError) as error:
        raise _invalid(f"{path} cannot be used as a key: {error}.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _invalid(f"{path} is not an Ed25519 key.")
    return key


def public_bytes(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _invalid(detail: str) -> RunwrightError:
    return RunwrightError(ErrorCode.ANCHOR_INVALID, detail)
