"""Registry of tools: the built-in ones, and those of installed packages."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Tool

GROUP = "runwright.tools"
"""Entry point group of tools: `name = "module:ToolClass"`."""

logger = logging.getLogger("runwright.tools")


@cache
def builtin_tools() -> dict[str, Tool]:
    """Return the built-in tools by kind. They are imported at the first call, not with this module."""
    from runwright.tools.dbt.tool import DbtTool
    from runwright.tools.playbook.artifact import PlaybookArtifactTool
    from runwright.tools.playbook.http import PlaybookHttpTool
    from runwright.tools.playbook.nats import PlaybookNatsTool
    from runwright.tools.playbook.python import PlaybookPythonTool
    from runwright.tools.playbook.secrets import PlaybookSecretsTool
    from runwright.tools.playbook.sql import PlaybookSqlTool
    from runwright.tools.sql.tool import SqlTool

    from .approval import ApprovalStepTool
    from .artifact import ArtifactTool
    from .http import HttpTool
    from .noop import NoopTool
    from .python import PythonTool
    from .shell import ShellTool
    from .sub_plan import PlanTool
    from .wait import WaitTool

    http = HttpTool()
    tools: list[Tool] = [
        ApprovalStepTool(),
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
    """Return all tools of this installation. A package that cannot be loaded is logged and skipped."""
    from importlib.metadata import entry_points

    tools = dict(builtin_tools())
    for point in entry_points(group=GROUP):
        if point.name in tools:
            logger.warning("Ignoring tool %r of %s: a tool of this name exists.", point.name, point.value)
            continue
        try:
            tools[point.name] = point.load()()
        except Exception as error:
            logger.warning("Loading tool %r of %s failed: %r", point.name, point.value, error)
    return tools
