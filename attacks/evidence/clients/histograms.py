"""Evidence about single clients from the histograms that each of them sent."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.allocation import share_out
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import first_gradient, reliability_of
from fedtrees.attacks.evidence.replay import EVERYONE, OTHERS, replay_trees
from fedtrees.attacks.evidence.view import evidence_of, histograms_of, noise_of
from fedtrees.core.view import View
from fedtrees.messages.horizontal import LabelSums
from fedtrees.trees.boosted.histogram import from_fixed

# Smallest mean reliability of single clients' bins. Below it, the sum over clients is more
# informative. Breast cancer, three seeds: laplace-hist 16 (.5) .610 -> .620, hist-rounding 1 (.3)
# .610 -> .617, laplace-hist 1 (.004) .553 -> .549.
LEAST_RELIABLE = 0.1
# Largest number of bins of all clients and nodes, of 16 bytes each: half a gigabyte.
MOST_BINS = 3e7


def told_apart(view: View) -> dict[str, Evidence]:
    """Return the evidence of each client that the adversary does not control, by name.

    The sums of a client's nodes and bins are computed from the histograms that this client sent,
    with the noise that it added. The trees are those of `evidence_of`.

    The result is empty if the view contains only sums over clients, fewer than two other clients,
    or more than `MOST_BINS` bins, and if noise hides nearly everything in single histograms
    (`LEAST_RELIABLE`).
    """
    replayed = replay_trees(view, by_client=True)
    first_tree = next(replayed, None)
    if first_tree is None:
        return {}
    names = sorted(first_tree.sums.keys() - {EVERYONE, OTHERS, *view.principals})
    # with one other client the sums over clients are already its sums
    joint = evidence_of(view) if len(names) > 1 else None
    if joint is None or joint.cuts is None:
        return {}
    size = sum(len(h.nodes) for h in joint.histograms or ()) * joint.cuts.total_bins * len(names)
    if size > MOST_BINS:
        return {}
    trees_by_client = [first_tree, *replayed]
    evidence: dict[str, Evidence] = {}
    for name in names:
        sums = (from_fixed(one.totals[name], one.bits) for one in trees_by_client)
        trees = tuple(
            replace(tree, g=part[:, 0], h=part[:, 1])
            for tree, part in zip(joint.trees, sums, strict=True)
        )
        evidence[name] = replace(
            joint,
            trees=trees,
            histograms=tuple(histograms_of(view, one, name) for one in trees_by_client),
            noise=noise_of(view, joint.trees, joint.cuts, (1, 1), rows=trees),
            own_sums=tuple(np.zeros((len(t.leaves), 2)) for t in trees),
            own_inside=False,
            own_in_bins=False,
            mean_start=False,
        )
    sizes = _sizes(view, evidence).tolist()
    reliable = [reliability_of(e, n) for e, n in zip(evidence.values(), sizes, strict=True)]
    if np.mean(reliable) < LEAST_RELIABLE:
        return {}
    return {
        name: replace(e, n_rows=n) for (name, e), n in zip(evidence.items(), sizes, strict=True)
    }


def _sizes(view: View, evidence_of_client: dict[str, Evidence]) -> NDArray[np.int64]:
    """Return the number of rows of every client: announced, or from its sums over all rows."""
    rows = {item.sender: float(m.sums[0]) for item, m in view.messages(LabelSums)}
    if not evidence_of_client.keys() <= rows.keys():
        rows = {
            name: float(e.trees[0].h[0]) / first_gradient(e)[1]  # type: ignore[index]
            for name, e in evidence_of_client.items()
        }
    n_own = 0 if view.rows is None else len(view.rows)
    return share_out(
        np.array([max(rows[name], 1.0) for name in evidence_of_client]), view.n_rows - n_own
    )
