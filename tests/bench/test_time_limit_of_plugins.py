"""No training that runs the code of a plug-in exceeds the time limit."""

import json
import time

import pytest

from fedtrees.bench.options import BenchOptions

SLEEPS = """
import time
from dataclasses import dataclass

from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import Histogram

@register.defense("sleeps")
@dataclass(frozen=True)
class Sleeps(Defense):
    acts_through = frozenset({"outgoing"})
    at = frozenset({"client"})
    guards = (Histogram,)

    def claim(self):
        return Structural()

    def outgoing(self, message, ctx):
        time.sleep(600)
        return message
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("threat", "attack"), [("client", "timberstrike"), ("server:halving", "halved-rows")]
)
def test_disclosures_and_checks_train_under_the_time_limit(tmp_path, threat, attack):
    file = tmp_path / "sleeps.py"
    file.write_text(SLEEPS)
    options = BenchOptions(
        protocol="fedtree-hist[trees=1,max_depth=2]", defense="sleeps", attack=attack,
        data="wine[rows=60]", threat=threat, seeds="1", jobs=1, time_limit=4.0,
        out=str(tmp_path / "run"), plugin=str(file),
    )  # fmt: skip
    begun = time.monotonic()
    bench = options.session()
    bench.open(resume=False)
    counts = bench.run()
    assert time.monotonic() - begun < 120  # of 600 seconds for one message
    assert counts["timeout"] >= 1
    listed = json.loads((tmp_path / "run" / "disclosure.json").read_text())
    assert {row["defense"] for row in listed} == {"none"}
