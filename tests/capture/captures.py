"""Captures that were recorded with docs/examples/capture, and the rows they were made from."""

import gzip
from collections import Counter
from pathlib import Path

from fedtrees.capture.attack import read_party_tables
from fedtrees.capture.formats import Decoded
from fedtrees.capture.records import Capture

HERE = Path(__file__).parent


def capture(name, folder):
    """Unpack a recorded capture; return its path."""
    path = folder / f"{name}.capture"
    path.write_bytes(gzip.decompress((HERE / name / "run.capture.gz").read_bytes()))
    return path


def decoded(name, folder):
    """Return all records of a recorded capture, and how it ended."""
    found = Decoded(Capture(capture(name, folder)))
    return list(found), found.ended


def told_of(found):
    """Return how many facts readings tell, by what they are and whose."""
    told = Counter()
    for reading in found:
        told[reading.what, reading.owner] += len(reading.facts)
    return told


def rows(name):
    """Return the rows of every party of a recorded capture, or of a folder."""
    return read_party_tables([str(p) for p in sorted((HERE / name).glob("*.csv"))], "label")
