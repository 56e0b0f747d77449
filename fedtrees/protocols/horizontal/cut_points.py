"""How clients and server settle common cut points, whatever is grown on them."""

from __future__ import annotations

from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.schema import Schema, Table
from fedtrees.core.tree_messages import CutPoints, CutsRequest, FeatureRanges, FeatureSketch
from fedtrees.protocols.horizontal.histograms import (
    column_ranges,
    merge_summaries,
    public_cuts,
)
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.sketch import local_sketch


class BinningClient(Party):
    """A client that summarises its columns and bins its rows.

    Parameters
    ----------
    name : str
    data : Table
    """

    role = "client"

    def __init__(self, name: str, data: Table) -> None:
        super().__init__(name)
        self.data = data

    @handles(CutsRequest)
    def summarise(self, message: CutsRequest) -> FeatureSketch | FeatureRanges:
        """Answer with quantile summaries or ranges of every column."""
        if message.method == "sketch":
            s = local_sketch(self.data.X, message.max_bin)
            return FeatureSketch(s.points, s.weights, s.offsets, s.low)
        return FeatureRanges(*column_ranges(self.data.X))

    @handles(CutPoints)
    def bin(self, message: CutPoints) -> None:
        """Bin the rows once and for all."""
        self.cuts = Cuts(message.values, message.offsets, message.minimum)
        self.bins = bin_rows(self.data.X, self.cuts)


def settle_cuts(net: Network, method: str, max_bin: int, schema: Schema) -> Cuts:
    """Agree on cut points and tell all clients.

    Parameters
    ----------
    net : Network
    method : {"sketch", "equal-width", "public"}
    max_bin : int
    schema : Schema
        Its cut points and public ranges are used where the method is "public".
    """
    if method == "public":
        cuts = public_cuts(schema, max_bin)
        why = "cut points, from what the schema declares"
    else:
        parts = net.ask("client", CutsRequest(method, max_bin), why="to settle cut points")
        cuts = merge_summaries(parts, max_bin)
        why = f"cut points, merged from the clients' {method} summaries"
    net.tell("client", CutPoints(cuts.values, cuts.offsets, cuts.minimum), why=why)
    return cuts
