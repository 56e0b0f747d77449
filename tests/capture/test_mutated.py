"""Damaged captures give an error of one line each, or the readable part of them."""

import struct
import time
import zlib

import numpy as np
import pytest
from captures import capture

from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import machine_readings, readings
from fedtrees.capture.records import Capture
from fedtrees.capture.replay import schema_of, worked_out
from fedtrees.core.errors import FedtreesError
from fedtrees.protocols.peers.xgboost_ring import XGBoostRing

RING = XGBoostRing(trees=2, max_depth=2)
NAMES = ("ring2", "ring3", "server3", "columns3", "machines3", "nvflare3", "secure3", "trees3")


def mutate(blob, rng):
    """Change a capture somewhere, or the content of a frame with a matching checksum."""
    changed = bytearray(blob)
    mutation = rng.integers(5)
    if mutation == 0:
        return changed[: rng.integers(len(changed))]
    if mutation == 1:
        for position in rng.integers(0, len(changed), rng.integers(1, 9)):
            changed[position] = rng.integers(256)
        return changed
    frames, position = [], 8
    while position < len(changed):
        (length,) = struct.unpack_from("<I", changed, position)
        frames.append((position, length))
        position += 8 + length
    position, length = frames[rng.integers(len(frames))]
    if mutation == 2:  # a frame that is lost or repeated
        frame = bytes(changed[position : position + 8 + length])
        return (
            changed[:position] + frame * int(rng.integers(0, 3)) + changed[position + 8 + length :]
        )
    for _ in range(rng.integers(1, 5)):
        spot = position + 8 + int(rng.integers(length))
        if mutation == 3:
            changed[spot] = rng.integers(256)
        else:  # large numbers
            end = min(spot + 4, position + 8 + length)
            changed[spot:end] = b"\xff\xff\xff\x7f"[: end - spot]
    struct.pack_into(
        "<I", changed, position + 4, zlib.crc32(changed[position + 8 : position + 8 + length])
    )
    return changed


def count_refused(name, count, seed, folder):
    """Read `count` damaged captures; return how many were refused."""
    blob = capture(name, folder).read_bytes()
    rng, refused = np.random.default_rng(seed), list[str]()
    path = folder / "mutated.capture"
    for _ in range(count):
        path.write_bytes(mutate(blob, rng))
        start = time.process_time()
        try:
            records = list(Decoded(Capture(path, 0)))
            readings(records, ("worker-0",))
            list(machine_readings(records, ("worker-1",)))
            if name.startswith("ring"):
                visible_records = [
                    record for record in records if "worker-1" in (record.sender, *record.receivers)
                ]
                list(worked_out(visible_records, "worker-1", RING, schema_of(3)))
        except FedtreesError as error:
            refused.append(str(error))
        assert time.process_time() - start < 5
    assert not any("\n" in text for text in refused)
    return len(refused)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_captures_are_refused_in_a_line_or_read(name, tmp_path):
    assert 5 < count_refused(name, 30, 0, tmp_path) < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_captures(name, tmp_path):
    import resource

    for seed in range(1, 21):
        count_refused(name, 100, seed, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20  # kilobytes
