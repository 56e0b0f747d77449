"""Captures that were damaged: an error of one line each, or what is left of them."""

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


def mutated(blob, rng):
    """Change a capture somewhere, or what stands in a frame, with a checksum that fits."""
    out = bytearray(blob)
    how = rng.integers(5)
    if how == 0:
        return out[: rng.integers(len(out))]
    if how == 1:
        for at in rng.integers(0, len(out), rng.integers(1, 9)):
            out[at] = rng.integers(256)
        return out
    frames, at = [], 8
    while at < len(out):
        (length,) = struct.unpack_from("<I", out, at)
        frames.append((at, length))
        at += 8 + length
    at, length = frames[rng.integers(len(frames))]
    if how == 2:  # a piece that is lost, or comes twice
        frame = bytes(out[at : at + 8 + length])
        return out[:at] + frame * int(rng.integers(0, 3)) + out[at + 8 + length :]
    for _ in range(rng.integers(1, 5)):
        spot = at + 8 + int(rng.integers(length))
        if how == 3:
            out[spot] = rng.integers(256)
        else:  # numbers that are large
            end = min(spot + 4, at + 8 + length)
            out[spot:end] = b"\xff\xff\xff\x7f"[: end - spot]
    struct.pack_into("<I", out, at + 4, zlib.crc32(out[at + 8 : at + 8 + length]))
    return out


def survives(name, count, seed, folder):
    """Read so many damaged captures; return how many were refused."""
    blob = capture(name, folder).read_bytes()
    rng, refused = np.random.default_rng(seed), list[str]()
    path = folder / "mutated.capture"
    for _ in range(count):
        path.write_bytes(mutated(blob, rng))
        begun = time.process_time()
        try:
            records = list(Decoded(Capture(path, 0)))
            readings(records, ("worker-0",))
            list(machine_readings(records, ("worker-1",)))
            if name.startswith("ring"):
                seen = [r for r in records if "worker-1" in (r.sender, *r.receivers)]
                list(worked_out(seen, "worker-1", RING, schema_of(3)))
        except FedtreesError as err:
            refused.append(str(err))
        assert time.process_time() - begun < 5
    assert not any("\n" in text for text in refused)
    return len(refused)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_captures_are_refused_in_a_line_or_read(name, tmp_path):
    assert 5 < survives(name, 30, 0, tmp_path) < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_captures(name, tmp_path):
    import resource

    for seed in range(1, 21):
        survives(name, 100, seed, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20  # kilobytes
