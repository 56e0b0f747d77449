"""Locate the data files, or skip tests that need them."""

import os
from pathlib import Path

import pytest


def data_dir() -> Path:
    """Return the data directory, or skip the test with the reason."""
    configured = os.environ.get("FEDTREES_DATA")
    shared_folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if configured:
        return Path(configured)
    if shared_folder.is_dir():
        return shared_folder
    pytest.skip("needs the data files: set FEDTREES_DATA to their folder")
