"""Where tests find the data files, and how they say that there are none."""

import os
from pathlib import Path

import pytest


def data_dir() -> Path:
    """Return the data directory, or skip the test with the reason."""
    named = os.environ.get("FEDTREES_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if named:
        return Path(named)
    if beside.is_dir():
        return beside
    pytest.skip("needs the data files: set FEDTREES_DATA to their folder")
