"""`isolating`: a server that tells one client other splits than the rest."""

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
    """Tell one client to keep all but the top bin of a column, the others its lowest bin alone.

    What is between is then that client's: its sum is asked for. One tree a column, each a leaf of
    value 0 that moves nobody's predictions; then it is honest.
    """

    beyond = "tells the last client other splits than the rest: all bins between are then its own"
    noticed = (
        "no: every split is legal; a sum over who was told otherwise opens nothing, which under "
        "paillier the holder of the key sees, else nobody but the server"
    )
    readable = True  # sums open

    def grow(self, net: Network, tree: int) -> Tree:
        """Isolate a column in each of the first trees."""
        if tree >= self.cuts.n_features and self.readable:
            return super().grow(net, tree)
        if self.readable:
            self.ask_histograms(net, tree, ROOT)
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
        """Tell one client a split of the root, in the column of the tree's number."""
        column, cut = ROOT + np.int32(tree), ROOT + np.int32(bin)
        where, default = self.cuts.thresholds(column, cut), np.zeros(1, dtype=bool)
        message = NodeSplits(tree, ROOT, column, cut, where, default, LEFT)
        net.tell(name, message, why="a split that others are told otherwise")
