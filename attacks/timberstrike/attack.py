"""The attack `timberstrike`, the authors' version of it, and the control `random-leaf`.

`TimberStrike` passes the observations of a view (`fedtrees.attacks.observations`) to `reconstruct`,
once for all rows, or once per client if the view shows the trees or statistics of single clients.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedtrees.attacks.clients.client_trees import Clues
from fedtrees.attacks.clients.per_client import Starts, observe_clients, reconstruct_rows
from fedtrees.attacks.counts.interval_counts import with_counts_read_back
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.boosting import BoostingObservations, Level
from fedtrees.attacks.reconstruction.prior import Ranges
from fedtrees.attacks.reconstruction.targets import announced_moments
from fedtrees.attacks.timberstrike.options import Options, Points, Scope, Solver
from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.attacks.timberstrike.regression_rows import reconstruct_numbers
from fedtrees.core.attack import Attack
from fedtrees.core.claims import EveryRecord, Guess, LeafCounts, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View

Noise = Literal["declared", "ignored"]


@register.attack("timberstrike")
@dataclass(frozen=True, kw_only=True)
class TimberStrike(Options, Attack):
    """Reconstruct training rows from the trees of a boosted model (Di Gennaro et al. 2025).

    The attack uses the most detailed statistics of the view: bin histograms, else sums per node,
    else leaf values. It takes declared noise and rounding into account. If clients grow trees on
    their local data and share them, it reconstructs the rows of each client separately.

    Parameters
    ----------
    max_level : {"histograms", "statistics", "values"}
        Most detailed statistics that the attack may use, even if the view contains more.
    linkage_statistics : {"hessian", "sums", "all"}
        Statistics that link trees without a sender's name to the same client: the hessian sums of
        the roots, as in the authors' code; hessian and gradient sums of the roots; or these and
        thresholds.
    base_scores : {"own", "model"}
        Base score of the first tree of a client: that of the client, announced or inferred; or that
        of the model, as in the authors' code.
    noise : {"declared", "ignored"}
        Use the declared variance of the noise; or treat noisy sums as exact, as the authors' code
        does (`as_published`).
    solver, points, scope, ...
        Options of the reconstruction, see `Options`.

    References
    ----------
    Di Gennaro et al. (2025), "TimberStrike: Dataset reconstruction attack revealing privacy leakage
    in federated tree-based systems".
    """

    claims = (Records, LeafCounts)

    supports_regression: ClassVar[bool] = True

    max_level: Level = "histograms"
    linkage_statistics: Clues = "all"
    base_scores: Starts = "own"
    noise: Noise = "declared"

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no boosted trees, None if they do."""
        return no_trees(view, supports_regression=self.supports_regression)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct the victims' rows, and the class counts of the leaves of the first tree.

        Parameters
        ----------
        view : View
            Messages of the training. The rows of the principals, if there are any, are subtracted
            from all sums and used as the prior.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        guess : Guess
            With ``scope="union"``, `EveryRecord` claims about the rows of all clients. Otherwise
            `Records` and `LeafCounts`. The guess is empty if the view contains no boosted trees.
        """
        numeric = not view.schema.classes

        def one(evidence: BoostingObservations) -> Guess:
            parts = self._as_assumed(evidence), view.rows, view.schema
            if numeric:
                return reconstruct_numbers(*parts, announced_moments(view), self, rng)
            return reconstruct(*parts, self, rng)

        # With scope="union", clients are separated only if their trees are known one by one.
        victims = [
            victim
            for victim in observe_clients(
                view, self.linkage_statistics, self.base_scores, self.max_level
            )
            if self.scope != "union" or victim.blocks
        ]
        sketches, bins = self.sketches and self.use_prior, self.max_level == "histograms"
        guess = reconstruct_rows(
            view, victims, self.max_level, one, rng, sketches=sketches, bins=bins
        )
        if numeric:
            return guess
        if self.scope != "union":
            reads_bins = bins and self.noise == "declared"
            return with_counts_read_back(guess, view) if reads_bins else guess
        rows = (EveryRecord(r.table, owner=r.owner) for r in guess.all(Records))
        return replace(guess, claims=tuple(rows))

    def _as_assumed(self, evidence: BoostingObservations) -> BoostingObservations:
        """Return the evidence unchanged, or without its declared noise for ``noise="ignored"``."""
        if self.noise == "declared":
            return evidence
        # For numeric targets, every hessian is 1, and the authors' code does not support them.
        return without_noise(evidence) if evidence.targets is not None else as_published(evidence)


def as_published(evidence: BoostingObservations) -> BoostingObservations:
    """Treat noisy sums as exact, as the authors' code does.

    If the hessian of every row is 1, their code takes a quarter of each count for H, and computes
    the gradient sum as ``G = -(v / eta) (N / 4 + lambda)`` from the leaf value v. The result is
    four times too small for a large leaf, so that both classes come out equally frequent. In later
    trees, sums of p (1 - p) are compared with those quarters.
    """
    trees = evidence.trees
    if evidence.constant_hessian:
        trees = tuple(replace(t, g=None, h=None if t.h is None else t.h / 4) for t in trees)
    return without_noise(evidence).change(trees=trees, constant_hessian=False)


def without_noise(evidence: BoostingObservations) -> BoostingObservations:
    """Remove the declared noise, so that noisy sums are treated as exact."""
    bins = evidence.observed.histograms
    bins = None if bins is None else tuple(replace(part, slack=None) for part in bins)
    return evidence.change(histograms=bins, noise=None)


@register.attack("timberstrike-published")
@dataclass(frozen=True, kw_only=True)
class PublishedTimberStrike(TimberStrike):
    """TimberStrike as in the authors' code, for comparison with their tables.

    The authors' code differs from the paper, or from the defaults of `TimberStrike`, as follows.
    Each item ends with the option of `TimberStrike` that this class sets:

    - Local data of the adversary is neither subtracted nor used as the prior (``use_prior=False``).
      The rows of all clients are reconstructed (``scope="union"``), except from trees that clients
      grow on their local data.
    - Rows are assigned to leaves so that the L1 distance of the sums is small, while the paper
      prints squared L2 (``solver="local-search"``). Local search stays above the optimum (Pima,
      FedTree, depth 3, second tree: 17, while the true rows give 0). Annealing to 0.8 changes the
      reconstruction accuracy (RA) by less than a point. Corner solutions cost 3 to 6 points of RA:
      those of a linear programme after rounding, or of an integer programme that is stopped after a
      second.
    - Every tree is used (``max_trees=10_000``). There is one reconstruction, not a consensus of
      several (``chains=1``).
    - The guess is the middle of the box. A category without constraint is guessed as missing, which
      is wrong, and the last code of an open interval is never guessed (``points="published"``).
    - Open sides of a box end at the largest value over all clients if cut points reveal it, else at
      the range of the adversary's local data (``ranges="own"``). Their code uses the true range of
      all clients' rows, even if no message reveals it.
    - In bagging, the first tree of every client is decoded with the base score of the model, which
      is that of the client that arrived first (``base_scores="model"``).
    - Trees of one client are linked by root hessians only (``linkage_statistics="hessian"``).
    - Noisy sums are treated as exact (``noise="ignored"``). Under `laplace-gradient`, gradients
      come out four times too small.
    - The attack uses the sums in the model, never the histograms that clients also receive
      (``max_level="statistics"``).

    Notes
    -----
    Their code has four errors that this class does not repeat:

    - Their code drops assignments that a solver returns as 0.9999999.
    - In the cycle, their code adds trees between two of the victim's trees one turn too late, and
      in bagging it adds trees of the same round too early. Each changes RA by about a point.
    - Their code weights the leaves of other clients' trees by hessian sums only, and not by the
      part of the box that they cover, which also changes RA by about a point.
    - Their code parses the model with a regular expression, which matches another node if the cover
      of a node is an integer.

    This class does not repeat their score either. It counts one column too many if no column is
    categorical, so that the printed figure for Pima is 10 plus nine tenths of RA.
    """

    is_reference: ClassVar[bool] = True
    supports_regression: ClassVar[bool] = False

    max_level: Level = "statistics"
    solver: Solver = "local-search"
    points: Points = "published"
    scope: Scope = "union"
    use_prior: bool = False
    ranges: Ranges = "own"
    max_trees: int | None = 10_000
    chains: int | None = 1
    linkage_statistics: Clues = "hessian"
    base_scores: Starts = "model"
    noise: Noise = "ignored"


@register.attack("random-leaf")
@dataclass(frozen=True, kw_only=True)
class RandomLeaf(TimberStrike):
    """Control of TimberStrike: assign rows to random reachable leaves from the second tree on.

    The difference to `TimberStrike` is the contribution of the sums of later trees. Di Gennaro et
    al. (2025) publish the control as "RA (F-TP)". The authors' code runs it over all trees.
    """

    is_reference: ClassVar[bool] = True

    random_leaf: bool = True
