"""Captures that were recorded with docs/examples/capture, and the rows they were made from."""

import gzip
from pathlib import Path

from fedtrees.capture.truth import read_truth

HERE = Path(__file__).parent


def capture(name, folder):
    """Unpack a recorded capture; return its path."""
    path = folder / f"{name}.capture"
    path.write_bytes(gzip.decompress((HERE / name / "run.capture.gz").read_bytes()))
    return path


def rows(name):
    """Return the rows of every party."""
    return read_truth([str(p) for p in sorted((HERE / name).glob("*.csv"))], "label")
