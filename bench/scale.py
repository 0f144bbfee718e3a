"""How much is measured: the full benchmark, or a quick look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree

import msgspec

_numbers = count(1)


class Scale(msgspec.Struct, frozen=True):
    folder: Path  # on a real disk: what is measured is durable
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """At least five, whatever the hurry: a median of fewer says little on a shared machine."""
        return self.size(7, 5)

    @contextmanager
    def place(self) -> Iterator[Path]:
        """An empty folder, gone afterwards."""
        folder = self.folder / str(next(_numbers))
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            rmtree(folder)
