"""Attacks on labels by record ids, CPU seconds of one thread; the view is replayed beforehand."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from fedtrees.attacks.labels.attack import ID2Graph, LabelMixture, LeafView, leaf_view
from fedtrees.attacks.labels.communities import contract
from fedtrees.benchmarks.perf.federations import two_parties
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

COLUMNS, CLASSES = 18, 5
#: Rows, and the seconds that contraction, Louvain and K-means may take together.
TARGETS = {165_000: 3.0, 1_000_000: 15.0}
PROTOCOLS = {"secureboost": {"multi_output": True}, "vertical-forest": {}}


def lines(size: Size = FULL) -> Iterator[Line]:
    """Attack two parties' trees of five classes; `label-mixture` at the smaller size alone."""
    for rows, target in size.cases(list(TARGETS.items())):
        n = size.rows(rows)
        for name, parameters in PROTOCOLS.items():
            seen = _seen(n, Spec(name, parameters))
            spent = medians({"graph": partial(_communities, seen)}, size.repeats)["graph"]
            what = f"{name}, {n:,} x {COLUMNS}, {len(seen.twins.weight):,} groups"
            text = f"contraction, Louvain from {len(seen.eta)} trees and K-means: {what}"
            yield Line(text, f"{spent:.2g} s", "", f"<= {target:g} s", spent <= target)
            if target == min(TARGETS.values()):
                run = partial(_mixture, seen)
                spent = medians({"mixture": run}, min(size.repeats, 1))["mixture"]
                yield Line(f"`label-mixture`: {what}", f"{spent:.2g} s")


def _seen(n: int, protocol: Spec) -> LeafView:
    data, made = table(n, COLUMNS, CLASSES), register.make("protocol", protocol)
    held = two_parties(made, data)
    view = view_of(train(made, held, schema_of(data, CLASSES)), ("passive-1",), held)
    seen = leaf_view(view, "drop", 0.6)
    assert seen is not None
    return seen


def _communities(seen: LeafView) -> None:
    again = replace(seen, twins=contract(seen.leaves, seen.eta))
    ID2Graph().clusters(again, np.random.default_rng(0))


def _mixture(seen: LeafView) -> None:
    LabelMixture().clusters(seen, np.random.default_rng(0))
