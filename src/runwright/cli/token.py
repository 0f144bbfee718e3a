"""Tokens: who may use the server, and as what."""

from __future__ import annotations

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.access import ROLES, SCOPES
from runwright.control.operations import local_actor
from runwright.control.tokens import Tokens
from runwright.plans.durations import NoDuration, read_duration

from .render import table
from .session import DONE, Session, command


@click.group("token")
def token_command() -> None:
    """Make, list and revoke the tokens that callers of a server show."""


@command("create")
@click.argument("name")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES, case_sensitive=False), help="May be repeated.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="For machines. May be repeated.")
@click.option("--tenant", metavar="ID", help="Bind it to this tenant. Default: every tenant.")
@click.option("--expires", metavar="TIME", help="How long it is good for, such as 30d. Default: for ever.")
async def _create(
    session: Session,
    name: str,
    roles: tuple[str, ...],
    scopes: tuple[str, ...],
    tenant: str | None,
    expires: str | None,
) -> int:
    """Make a token and print it. It is shown this once: the store keeps only a digest."""
    try:
        lifetime = None if expires is None else read_duration(expires)
    except NoDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--expires: {error}") from None
    if session.server is not None:
        async with session.remote() as remote:
            token, text = await remote.create_token(
                name, tenant_id=tenant, roles=roles, scopes=scopes, expires_in=expires
            )
    else:
        async with session.open_store(must_exist=False) as log:
            token, text = await Tokens(log.desk, log.clock).create(
                name, by=local_actor(), tenant_id=tenant, roles=roles, scopes=scopes, lifetime=lifetime
            )
    if session.as_json:
        session.print_json({"token": text, "details": token})
    else:
        click.echo(text)
        click.echo(f"Token {token.token_id} of {name}. Keep it: it is not shown again.", err=True)
    return DONE


@command("list")
async def _list(session: Session) -> int:
    """List tokens, also those that are good no longer."""
    if session.server is not None:
        async with session.remote() as remote:
            tokens = await remote.list_tokens()
    else:
        async with session.open_store() as log:
            tokens = await Tokens(log.desk, log.clock).list()
    if session.as_json:
        session.print_json([msgspec.to_builtins(token) for token in tokens])
        return DONE
    rows = [
        (
            token.token_id,
            token.name,
            token.tenant_id or "(all)",
            ", ".join((*token.roles, *token.scopes)),
            token.created_at[:19],
            "revoked" if token.revoked_at else (token.expires_at or "never")[:19],
        )
        for token in tokens
    ]
    table(("TOKEN", "NAME", "TENANT", "MAY", "MADE", "ENDS"), rows)
    return DONE


@command("revoke")
@click.argument("token_id")
async def _revoke(session: Session, token_id: str) -> int:
    """End a token now. Other servers notice within a second."""
    if session.server is not None:
        async with session.remote() as remote:
            await remote.revoke_token(token_id)
    else:
        async with session.open_store() as log:
            await Tokens(log.desk, log.clock).revoke(token_id, by=local_actor())
    click.echo(f"Token {token_id} is revoked.", err=True)
    return DONE


for _command in (_create, _list, _revoke):
    token_command.add_command(_command)
