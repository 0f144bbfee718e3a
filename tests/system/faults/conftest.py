"""Fixtures for tests of faults."""

from __future__ import annotations

import pytest


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """A database without tables: several processes may have to create them at once."""
    return empty_postgres_url
