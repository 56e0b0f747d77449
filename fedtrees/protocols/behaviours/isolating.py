"""Behaviour `isolating`: a malicious server sends different splits to one client."""

import numpy as np

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.errors import EquivocationError
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.messages.boosting import LeafValues, NodeSplits
from fedtrees.protocols.horizontal.histograms import DecidingServer
from fedtrees.sealing.errors import WrongKeyError
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.partition import ROOT

LEFT = ROOT + 1


@register.behaviour("isolating")
class Isolating(Behaviour, DecidingServer):
    """Send one client a split at a column's top bin, and the remaining clients another split.

    The remaining clients split at the lowest bin of the column. The left child then contains the
    bins between both splits only for the victim, so that the sum over all clients shows the
    victim's rows. The server uses one tree per column, each with a leaf of value 0 that changes no
    prediction, and is then honest.
    """

    beyond = "tells the last client other splits than the rest: all bins between are then its own"
    noticed = (
        "no: every split is legal; a sum over who was told otherwise opens nothing, which under "
        "paillier the holder of the key sees, else nobody but the server"
    )
    readable = True  # False once a sum could not be opened

    def grow(self, net: Network, tree: int) -> Tree:
        """Isolate the victim's bins of one column in each of the first trees."""
        if tree >= self.cuts.n_features and self.readable:
            return super().grow(net, tree)
        if self.readable:
            self.ask_histograms(net, tree, ROOT)
        # With two bins there is no bin between the lowest and the top one.
        if self.readable and self.cuts.n_bins[tree] > 2:
            *other_names, victim = net.members("client")
            for name in other_names:
                self.send(net, name, tree, 0)
            self.send(net, victim, tree, int(self.cuts.n_bins[tree]) - 2)
            try:
                self.ask_histograms(net, tree, LEFT)
            except (EquivocationError, WrongKeyError):
                self.readable = False
        if self.readable:
            net.tell("client", LeafValues(tree, ROOT, np.zeros(1, np.float32)), why="a leaf of 0")
        return TreeBuilder().build()

    def send(self, net: Network, name: str, tree: int, bin: int) -> None:
        """Send one client a split of the root, in the column with the number of the tree.

        Parameters
        ----------
        net : Network
            Network of the run.
        name : str
            Name of the client.
        tree : int
            Number of the tree and of the column.
        bin : int
            Last bin that goes left.
        """
        column, cut = ROOT + np.int32(tree), ROOT + np.int32(bin)
        where, default = self.cuts.thresholds(column, cut), np.zeros(1, dtype=bool)
        message = NodeSplits(tree, ROOT, column, cut, where, default, LEFT)
        net.tell(name, message, why="a split that others are told otherwise")
