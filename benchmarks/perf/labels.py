"""Measure attacks on labels that use record ids, in CPU seconds. The view is replayed before."""

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
#: Upper limit in CPU seconds of contraction, Louvain and K-means together, by number of rows.
TARGETS = {165_000: 3.0, 1_000_000: 15.0}
PROTOCOLS = {"secureboost": {"multi_output": True}, "vertical-forest": {}}


def lines(size: Size = FULL) -> Iterator[Line]:
    """Attack trees of two parties with five classes, and `label-mixture` at the smaller size."""
    for rows, target in size.cases(list(TARGETS.items())):
        n = size.rows(rows)
        for name, parameters in PROTOCOLS.items():
            seen = _seen_leaves(n, Spec(name, parameters))
            spent = medians({"graph": partial(_communities, seen)}, size.repeats)["graph"]
            what = f"{name}, {n:,} x {COLUMNS}, {len(seen.twins.weight):,} groups"
            text = f"contraction, Louvain from {len(seen.eta)} trees and K-means: {what}"
            yield Line(text, f"{spent:.2g} s", "", f"<= {target:g} s", spent <= target)
            if target == min(TARGETS.values()):
                run = partial(_mixture, seen)
                spent = medians({"mixture": run}, min(size.repeats, 1))["mixture"]
                yield Line(f"`label-mixture`: {what}", f"{spent:.2g} s")


def _seen_leaves(n: int, protocol: Spec) -> LeafView:
    """Return the leaves that the passive party sees of the first trained model."""
    data, protocol_object = table(n, COLUMNS, CLASSES), register.make("protocol", protocol)
    local_data = two_parties(protocol_object, data)
    view = view_of(
        train(protocol_object, local_data, schema_of(data, CLASSES)), ("passive-1",), local_data
    )
    seen = leaf_view(view, "drop", 0.6)
    assert seen is not None
    return seen


def _communities(seen: LeafView) -> None:
    """Cluster the rows by communities, including the contraction of equal rows."""
    contracted = replace(seen, twins=contract(seen.leaves, seen.eta))
    ID2Graph().clusters(contracted, np.random.default_rng(0))


def _mixture(seen: LeafView) -> None:
    """Cluster the rows by a mixture model."""
    LabelMixture().clusters(seen, np.random.default_rng(0))
