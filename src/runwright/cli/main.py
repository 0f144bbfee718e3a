"""The `runwright` command. The module of a subcommand is imported only when that subcommand is run."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NamedTuple

import click

from runwright import __version__


class Subcommand(NamedTuple):
    module: str
    """Module in runwright.cli.commands."""
    summary: str


COMMANDS: dict[str, Subcommand] = {
    "init": Subcommand("init", "Write a starter plan and runwright.toml to this directory."),
    "run": Subcommand("run", "Run a plan and show live progress."),
    "watch": Subcommand("run", "Watch a run until it ends."),
    "logs": Subcommand("logs", "Show step output."),
    "pause": Subcommand("signals", "Pause a run: running steps finish, no new steps start."),
    "resume": Subcommand("signals", "Resume a paused run."),
    "cancel": Subcommand("signals", "Cancel a run."),
    "retry": Subcommand("signals", "Retry a failed step."),
    "skip": Subcommand("signals", "Skip a pending or failed step."),
    "approve": Subcommand("approvals", "Approve a step that is waiting for approval."),
    "deny": Subcommand("approvals", "Deny a step that is waiting for approval."),
    "send": Subcommand("approvals", "Deliver an external event to a waiting step."),
    "signal": Subcommand("signals", "Send any signal to a run."),
    "confirm": Subcommand("signals", "Confirm a signal that requires a second person."),
    "rerun": Subcommand("rerun", "Start a new run from a finished one, reusing successful steps."),
    "recover": Subcommand("rerun", "Recover abandoned runs and run them to completion."),
    "plan": Subcommand("plan", "Validate and inspect plans."),
    "append": Subcommand("append", "Append events from JSON lines and print receipts."),
    "list": Subcommand("inspect", "List runs, newest first."),
    "show": Subcommand("inspect", "Show a run, now or at an earlier event or time."),
    "events": Subcommand("inspect", "Show or follow the events of a run."),
    "artifacts": Subcommand("artifacts", "List, download and prune artifacts."),
    "results": Subcommand("results", "Show results of runs, steps and tasks; prune expired results."),
    "alerts": Subcommand("inspect", "List alerts."),
    "verify": Subcommand("verify", "Verify the hash chain of runs."),
    "anchor": Subcommand("verify", "Write a signed anchor of all run heads."),
    "serve": Subcommand("serve", "Serve the HTTP API and drive runs."),
    "worker": Subcommand("worker", "Run a worker that executes steps for a server."),
    "token": Subcommand("token", "Create, list and revoke API tokens."),
    "rebuild": Subcommand("verify", "Rebuild run summaries from events (--check compares only)."),
    "doctor": Subcommand("verify", "Check the store and this installation."),
    "export": Subcommand("export_import", "Export the events of a run as JSON lines."),
    "import": Subcommand("export_import", "Import events from another log."),
    "noetl": Subcommand("noetl", "Check a log against the NoETL event model."),
    "key": Subcommand("key", "Show the idempotency key of an event and its preimage."),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"runwright.cli.commands.{COMMANDS[cmd_name].module}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, subcommand.summary) for name, subcommand in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="runwright")
def cli() -> None:
    """Runwright: a durable workflow engine on an append-only event log.

    The store is the SQLite file .runwright/runs.db unless --store, RUNWRIGHT_STORE or runwright.toml name another.
    Every command accepts --store URL and --json after its name.
    """


def main() -> None:
    try:
        status = cli.main(standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        status = 130
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Redirect stdout, so that the interpreter's flush at exit does not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
