"""Sizes and rounds of the benchmark: full or quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree

import msgspec

_numbers = count(1)


class Scale(msgspec.Struct, frozen=True):
    folder: Path  # On a real disk, because the measurements include durable commits.
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """At least five, also when quick: a median of fewer is not reliable on a shared machine."""
        return self.size(7, 5)

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """A temporary empty folder."""
        folder = self.folder / str(next(_numbers))
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            rmtree(folder)
