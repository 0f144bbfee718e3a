"""The kinds of step there are: our own, and those that installed packages bring."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Tool

GROUP = "runwright.tools"
"""The group of entry points by which a package brings a kind of step: `name = "module:ToolClass"`."""

logger = logging.getLogger("runwright.tools")


@cache
def builtin_tools() -> dict[str, Tool]:
    """Our own tools by kind. They are loaded when first asked for."""
    from .approval import ApprovalTool
    from .artifact import ArtifactTool
    from .dbt import DbtTool
    from .http import HttpTool
    from .noop import NoopTool
    from .plan import PlanTool
    from .playbook_artifact import PlaybookArtifactTool
    from .playbook_http import PlaybookHttpTool
    from .playbook_nats import PlaybookNatsTool
    from .playbook_python import PlaybookPythonTool
    from .playbook_secrets import PlaybookSecretsTool
    from .playbook_sql import PlaybookSqlTool
    from .python import PythonTool
    from .shell import ShellTool
    from .sql import SqlTool
    from .wait import WaitTool

    http = HttpTool()
    tools: list[Tool] = [
        ApprovalTool(),
        ArtifactTool(),
        DbtTool(),
        http,
        NoopTool(),
        PlanTool(),
        PlaybookArtifactTool(),
        PlaybookHttpTool(http),
        PlaybookNatsTool(),
        PlaybookPythonTool(),
        PlaybookSecretsTool(),
        PlaybookSqlTool(),
        PythonTool(),
        ShellTool(),
        SqlTool(),
        WaitTool(),
    ]
    return {tool.kind: tool for tool in tools}


@cache
def all_tools() -> dict[str, Tool]:
    """All that this installation has. A package that cannot be loaded is named, and does no other harm."""
    from importlib.metadata import entry_points

    tools = dict(builtin_tools())
    for point in entry_points(group=GROUP):
        if point.name in tools:
            logger.warning("The tool %r of %s is not used: there is one already.", point.name, point.value)
            continue
        try:
            tools[point.name] = point.load()()
        except Exception as error:
            logger.warning("The tool %r of %s cannot be loaded: %r", point.name, point.value, error)
    return tools
