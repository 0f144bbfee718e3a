"""`runwright token`: create, list and revoke API tokens."""

from __future__ import annotations

import click
import msgspec

from runwright.auth.roles import ROLES, SCOPES
from runwright.auth.tokens import Tokens
from runwright.cli.session import EXIT_OK, Session, command
from runwright.cli.terminal.formatting import print_table
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.run_scope import local_actor
from runwright.plans.durations import InvalidDuration, parse_duration


@click.group("token")
def token_command() -> None:
    """Create, list and revoke API tokens."""


@command("create")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(ROLES, case_sensitive=False),
    help="Role of a person. May be repeated.",
)
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="Scope of a machine. May be repeated."
)
@click.option("--tenant", metavar="ID", help="Restrict the token to this tenant [default: all tenants].")
@click.option("--expires", metavar="TIME", help="Lifetime, such as 30d [default: unlimited].")
async def _create(
    session: Session,
    name: str,
    roles: tuple[str, ...],
    scopes: tuple[str, ...],
    tenant: str | None,
    expires: str | None,
) -> int:
    """Create a token and print it. It cannot be shown again: the store holds only a digest."""
    try:
        lifetime = None if expires is None else parse_duration(expires)
    except InvalidDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--expires: {error}") from None
    if session.server is not None:
        async with session.remote() as remote:
            token, text = await remote.create_token(
                name, tenant_id=tenant, roles=roles, scopes=scopes, expires_in=expires
            )
    else:
        async with session.open_store(must_exist=False) as log:
            token, text = await Tokens(log.store.side_tables, log.clock).create(
                name, by=local_actor(), tenant_id=tenant, roles=roles, scopes=scopes, lifetime=lifetime
            )
    if session.as_json:
        session.print_json({"token": text, "details": token})
    else:
        click.echo(text)
        click.echo(f"Created token {token.token_id} for {name}. Save it: it cannot be shown again.", err=True)
    return EXIT_OK


@command("list")
async def _list(session: Session) -> int:
    """List tokens, including expired and revoked ones."""
    if session.server is not None:
        async with session.remote() as remote:
            tokens = await remote.list_tokens()
    else:
        async with session.open_store() as log:
            tokens = await Tokens(log.store.side_tables, log.clock).list()
    if session.as_json:
        session.print_json([msgspec.to_builtins(token) for token in tokens])
        return EXIT_OK
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
    print_table(("TOKEN", "NAME", "TENANT", "PERMISSIONS", "CREATED", "EXPIRES"), rows)
    return EXIT_OK


@command("revoke")
@click.argument("token_id")
async def _revoke(session: Session, token_id: str) -> int:
    """Revoke a token. Other servers reject it within a second."""
    if session.server is not None:
        async with session.remote() as remote:
            await remote.revoke_token(token_id)
    else:
        async with session.open_store() as log:
            await Tokens(log.store.side_tables, log.clock).revoke(token_id, by=local_actor())
    click.echo(f"Revoked token {token_id}.", err=True)
    return EXIT_OK


for _command in (_create, _list, _revoke):
    token_command.add_command(_command)
