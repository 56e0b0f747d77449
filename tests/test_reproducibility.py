"""What docs/reproducibility.md calls the same to the bit is: other instructions, same digests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from digests import ATTACKS, DEFENSES, digests
from llvmlite.binding import get_host_cpu_name

from fedtrees.core.registry import register

VECTORS = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
SETTINGS = {
    "numpy without vector instructions": {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS)},
    "numba for any processor": {"NUMBA_CPU_NAME": "generic"},
}
NO_EFFECT = {
    "numpy without vector instructions": not VECTORS
    and "numpy uses no vector instructions here beyond those it is built for: none to switch off",
    "numba for any processor": get_host_cpu_name() == "generic"
    and "numba does not know this processor and compiles for any one already",
}


@pytest.fixture(scope="module")
def here():
    return digests()


@pytest.mark.parametrize("setting", SETTINGS)
def test_messages_models_and_guesses_are_the_same_to_the_bit(here, setting):
    if NO_EFFECT[setting]:
        pytest.skip(NO_EFFECT[setting])
    script = Path(__file__).with_name("digests.py")
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", str(script)],
        env={**os.environ, **SETTINGS[setting]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert {key for key in here if here[key] != there.get(key)} == set()
    assert there.keys() == here.keys()


def test_every_protocol_defense_and_attack_named_as_exact_is_among_them(here):
    keys = [key.split(" ") for key in here]
    assert {protocol for protocol, _, _ in keys} == set(register.names("protocol"))
    assert {defense for _, defense, _ in keys} == set(DEFENSES)
    assert {d.partition("[")[0] for d in DEFENSES} == {"none", *register.names("defense")}
    assert set(ATTACKS) <= {what for _, _, what in keys}


def test_the_digests_tell_one_bit_from_another(here):
    """Different runs have different digests: nothing is hashed that is always the same."""
    runs = {key.rsplit(" ", 1)[0] for key in here}
    messages = {here[f"{run} messages"] for run in runs}
    assert len(messages) > len(runs) / 2
