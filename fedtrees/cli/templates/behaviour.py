"""A new behaviour: a server that requests both children of a node, although one would suffice.

fedtrees plugin check repeating.py
fedtrees explain fedtree-hist --plugin repeating.py --threat server:repeating
"""

import numpy as np

from fedtrees import Behaviour, register
from fedtrees.protocols.horizontal.histogram_parties import HistogramServer


@register.behaviour("repeating")
class Repeating(Behaviour, HistogramServer):
    """Request both children of a node, to compare their sums with the sum of their parent.

    If the sums contain noise, the difference between the parent and one child is a second
    observation of the other child.
    """

    deviation = "asks for both children of every node, not for the lighter one"
    detectable = "yes: clients are asked of one child of a pair, and refuse the other"

    def ask_histograms(self, net, tree, nodes):
        if nodes[0] > 0:
            super().ask_histograms(net, tree, np.where(nodes % 2, nodes + 1, nodes - 1))
        return super().ask_histograms(net, tree, nodes)
