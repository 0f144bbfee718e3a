"""The `runwright` command. A subcommand's code is loaded only when that subcommand runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from runwright import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("start", "Write a starter plan and runwright.toml into this folder."),
    "run": ("run", "Run a plan and show how it goes."),
    "watch": ("watch", "Watch a run until it ends."),
    "logs": ("logs", "Show what a run's steps wrote."),
    "pause": ("steer", "Start nothing new in a run; what runs may end."),
    "resume": ("steer", "Go on with a paused run."),
    "cancel": ("steer", "Stop a run for good."),
    "retry": ("steer", "Try a failed step again."),
    "skip": ("steer", "Do without a step."),
    "approve": ("answer", "Say yes to a step that asks."),
    "deny": ("answer", "Say no to a step that asks."),
    "send": ("answer", "Send a run an event that a step waits for."),
    "signal": ("steer", "Send a run any signal."),
    "confirm": ("steer", "Agree, as a second person, to a signal that waits for one."),
    "rerun": ("rerun", "Make a new run from one that has ended."),
    "recover": ("rerun", "Take over runs whose process died, and drive them to their end."),
    "plan": ("plan", "Look at a plan without running it: validate, show, hash, graph."),
    "append": ("append", "Append events: JSON lines in, one receipt or refusal a line out."),
    "list": ("look", "List runs, newest first."),
    "show": ("look", "Show a run as it is, or as it was at an event or a time."),
    "events": ("look", "Show a run's events, or follow them as they come."),
    "artifacts": ("artifacts", "See what a run's steps made, fetch it, delete what has expired."),
    "results": ("results", "See what a run, a step or a task gave back, delete what nobody wants."),
    "alerts": ("look", "List what an operator should know."),
    "verify": ("check", "Prove that nothing was edited, or say where."),
    "anchor": ("check", "Write a signed statement of where every run stands."),
    "serve": ("serve", "Serve the HTTP API, and drive runs."),
    "worker": ("worker", "Carry steps out for servers elsewhere."),
    "token": ("token", "Make, list and revoke tokens."),
    "rebuild": ("check", "Fold every run anew and mend its summary, or only compare."),
    "doctor": ("check", "Check the store and this installation."),
    "export": ("transfer", "Write a run's events as JSON lines."),
    "import": ("transfer", "Take in events from another log."),
    "noetl": ("noetl", "Check a log in the words of the NoETL event model."),
    "key": ("key", "Show an event's idempotency key and what it is made of."),
}
"""Each subcommand: the module it lives in, and what it does."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"runwright.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="runwright")
def cli() -> None:
    """Runwright keeps the history of workflow runs as their only truth.

    The store is a file, .runwright/runs.db, unless --store, RUNWRIGHT_STORE or runwright.toml name another.
    Every command takes --store URL and --json after its name.
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
        # Whoever read our output has enough. Keep the interpreter from tripping over it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
