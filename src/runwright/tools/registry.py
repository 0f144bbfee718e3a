"""The kinds of step there are."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Tool


@cache
def builtin_tools() -> dict[str, Tool]:
    """Our own tools by kind. They are loaded when first asked for."""
    from .approval import ApprovalTool
    from .noop import NoopTool
    from .python import PythonTool
    from .shell import ShellTool
    from .wait import WaitTool

    tools: list[Tool] = [ApprovalTool(), NoopTool(), PythonTool(), ShellTool(), WaitTool()]
    return {tool.kind: tool for tool in tools}
