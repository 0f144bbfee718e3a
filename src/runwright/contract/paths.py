"""Entity paths: the `stepId` of an event that is about a part of a step, or about something outside of steps.

    step[@visit][~attempt]([i])*[/task[@visit]]

`@1` and `~1` are omitted. `~n` appears only below a step in its nth attempt, so that the entities of attempt 2 do not
collide with those of attempt 1. To the log a path is opaque text; only the code that created a path parses it.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

RESERVED = frozenset("|@~[]/")
"""Characters that step ids and task labels of plans must not contain."""

_PATH = re.compile(
    r"(?P<step>[^|@~\[\]/]+)(?:@(?P<visit>\d{1,18}))?(?:~(?P<attempt>\d{1,18}))?(?P<indexes>(?:\[\d{1,18}\])*)"
    r"(?:/(?P<task>[^|@~\[\]/]+)(?:@(?P<task_visit>\d{1,18}))?)?",
    re.ASCII,
)


class EntityPath(msgspec.Struct, frozen=True):
    step: str
    visit: int = 1
    attempt: int = 1
    indexes: tuple[int, ...] = ()
    task: str | None = None
    task_visit: int = 1

    @property
    def owner(self) -> str:
        """The path of the step visit that the entity is or belongs to."""
        return self.step if self.visit == 1 else f"{self.step}@{self.visit}"

    def __str__(self) -> str:
        text = self.step
        if self.visit != 1:
            text += f"@{self.visit}"
        if self.attempt != 1:
            text += f"~{self.attempt}"
        text += "".join(f"[{index}]" for index in self.indexes)
        if self.task is None:
            return text
        text += f"/{self.task}"
        return text if self.task_visit == 1 else f"{text}@{self.task_visit}"


@lru_cache(maxsize=8192)
def parse_path(text: str) -> EntityPath | None:
    """Parse a path; None if the text is not exactly what a path renders to.

    Cached, because the same few entities of a run are looked up many times in a row.
    """
    match = _PATH.fullmatch(text)
    if match is None:
        return None
    path = EntityPath(
        step=match["step"],
        visit=int(match["visit"] or 1),
        attempt=int(match["attempt"] or 1),
        indexes=tuple(int(index) for index in re.findall(r"\d+", match["indexes"])),
        task=match["task"],
        task_visit=int(match["task_visit"] or 1),
    )
    return path if str(path) == text and min(path.visit, path.attempt, path.task_visit) >= 1 else None


def signal_path(signal_id: str) -> str:
    return f"signal/{signal_id}"
