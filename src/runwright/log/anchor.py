"""Anchors: signed statements of the last event of every run, to be stored outside of the log.

A hash chain reveals edits, but not a truncated run, a deleted run, or a history rewritten from the start. An earlier
anchor reveals these, too. It lists (run, last event, hash) of every run, and signs a root over the list with Ed25519.
A verifier needs only the old anchor and the public key, no trust in the store.
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
from runwright.core.integrity.chain import pack
from runwright.core.integrity.verify import Finding

from .protocols import LogReader

FORMAT = "runwright-anchor/1"
KEY_FILE = "anchor-key.pem"


class Anchor(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    format: str
    created_at: str
    runs: list[tuple[str, int, str]]  # run id, number and hash of the last event; sorted by run id
    root: str
    public_key: str
    signature: str

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def fingerprint(self) -> str:
        """Return a short name of the signing key."""
        return sha256(bytes.fromhex(self.public_key)).hexdigest()[:16]


def root_of(runs: list[tuple[str, int, str]]) -> bytes:
    """Return SHA-256 over the entries: run id, sequence number and hash, each prefixed with its length."""
    digest = sha256()
    for run_id, seq, head in runs:
        digest.update(pack((run_id.encode(), str(seq).encode(), bytes.fromhex(head))))
    return digest.digest()


def _signed_bytes(created_at: str, root: bytes) -> bytes:
    return pack((FORMAT.encode(), created_at.encode(), root))


async def make_anchor(log: LogReader, key: Ed25519PrivateKey) -> Anchor:
    """Create a signed anchor of all current run heads."""
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
    """Decode and verify an anchor: root, signature and, if provided, the trusted key. Raises ANCHOR_INVALID."""
    try:
        anchor = msgspec.json.decode(content, type=Anchor)
        root, signature = bytes.fromhex(anchor.root), bytes.fromhex(anchor.signature)
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(anchor.public_key))
        is_consistent = anchor.format == FORMAT and root_of(anchor.runs) == root
    except (msgspec.DecodeError, UnicodeError, ValueError, RecursionError):
        raise _invalid("Invalid anchor file. Create one with `runwright anchor -o FILE`.") from None
    if not is_consistent:
        raise _invalid("Invalid anchor: its root does not match its list of runs. The file was changed.")
    try:
        signer.verify(signature, _signed_bytes(anchor.created_at, root))
    except InvalidSignature:
        raise _invalid("Invalid anchor signature: the file was changed.") from None
    if trusted is not None and public_bytes(trusted) != public_bytes(signer):
        raise _invalid(f"The anchor was signed by another key ({anchor.fingerprint}). Pass the right key with --key.")
    return anchor


async def compare(log: LogReader, anchor: Anchor) -> AsyncIterator[Finding]:
    """Report the runs that contradict the anchor. Runs may have grown since."""
    heads = {run_id: seq async for run_id, seq, _ in log.heads()}
    for run_id, seq, head in anchor.runs:
        last = heads.get(run_id)
        if last is None:
            yield Finding(run_id, "MISSING", f"the run was deleted; the anchor lists it with {seq} events")
        elif last < seq:
            yield Finding(
                run_id, "MISSING", f"the history was truncated after event {last}; the anchor lists {seq}", last + 1
            )
        elif seq and await log.hash_at(run_id, seq) != bytes.fromhex(head):
            yield Finding(run_id, "CHANGED", "the history up to this event was rewritten since the anchor", seq)


def load_or_create_key(folder: Path) -> Ed25519PrivateKey:
    """Return the signing key of a state folder, created on first use and readable by its owner only."""
    path = folder / KEY_FILE
    if path.exists():
        return load_key(path)
    key = Ed25519PrivateKey.generate()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with NamedTemporaryFile(dir=folder, prefix=KEY_FILE) as file:  # Created with mode 0600.
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
            os.link(file.name, path)  # Atomic, and never replaces an existing key.
    except FileExistsError:
        return load_key(path)
    except OSError as error:
        raise _invalid(f"Cannot create a signing key in {folder}: {error.strerror}.") from None
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise _invalid(f"Invalid signing key {path}: {error}.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _invalid(f"{path} is not an Ed25519 key.")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key of a PEM file that contains the public or the private key."""
    try:
        content = path.read_bytes()
        key = load_pem_public_key(content) if b"PUBLIC KEY" in content else load_key(path).public_key()
    except (OSError, ValueError) as error:
        raise _invalid(f"Invalid key {path}: {error}.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _invalid(f"{path} is not an Ed25519 key.")
    return key


def public_bytes(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _invalid(detail: str) -> RunwrightError:
    return RunwrightError(ErrorCode.ANCHOR_INVALID, detail)
