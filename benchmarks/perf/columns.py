"""Compare vertical federations, messages included, with the central engine on the same rows."""

from collections.abc import Iterator
from functools import partial

from fedtrees.benchmarks.perf.federations import two_parties
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.vertical import visible_leaves
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest

ROWS, COLUMNS = 165_000, 18
TARGET = 2.0
#: Parameters with which every tree uses every column, as in the central engines.
CASES = {
    "secureboost": ({"colsample_bytree": 1.0}, grow_forest),
    "vertical-forest": ({"tree_features": None}, grow_random_forest),
}


def lines(size: Size = FULL) -> Iterator[Line]:
    """Compare two parties with the central engine, binning included, and replay a view."""
    data = table(size.rows(ROWS), COLUMNS)
    for name, (parameters, grow) in CASES.items():
        protocol = register.make("protocol", Spec(name, parameters))
        local_data = two_parties(protocol, data)
        run = partial(train, protocol, local_data, schema_of(data))
        cuts = partial(quantile_cuts, data.X, protocol.max_bin)

        def central(grow=grow, cuts=cuts, protocol=protocol):
            return grow(data.X, data.y, cuts(), protocol)

        seconds = medians({"columns": run, "central": central}, size.repeats)
        what = f"{name}, {len(data):,} x {COLUMNS}, 2 parties, 5 trees"
        yield ratio(what, seconds["columns"], seconds["central"], "central engine", TARGET)
        view = view_of(run(), ("passive-1",), local_data)
        replayed = medians({"view": partial(visible_leaves, view)}, size.repeats)["view"]
        yield Line(f"{name}, its visible leaves replayed", f"{replayed:.3g} s")
