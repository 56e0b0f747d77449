"""Captures recorded with docs/examples/capture, and the rows of those runs."""

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
    decoded_capture = Decoded(Capture(capture(name, folder)))
    return list(decoded_capture), decoded_capture.ended


def count_facts(some_readings):
    """Return how many facts the readings contain, by kind and owner."""
    counts = Counter()
    for reading in some_readings:
        counts[reading.what, reading.owner] += len(reading.facts)
    return counts


def rows(name):
    """Return the rows of every party of a recorded capture, or of a folder."""
    return read_party_tables([str(p) for p in sorted((HERE / name).glob("*.csv"))], "label")
