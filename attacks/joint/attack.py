"""The attack `joint`: collect evidence from a view, and run the Markov chains on it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtrees.attacks.clients.per_client import observe_clients, reconstruct_rows
from fedtrees.attacks.counts.interval_counts import (
    FirstTreeCounts,
    counts_of,
    counts_read_back,
    with_counts_read_back,
)
from fedtrees.attacks.joint.reconstruct import Options, enumerate_tables, reconstruct
from fedtrees.attacks.observations.applicability import classes_of_leaves, no_trees, some_rows
from fedtrees.attacks.observations.boosting import LEVELS, BoostingObservations, Level
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import cuts_are_of_rows, params_of
from fedtrees.attacks.reconstruction.exact_posterior import Training
from fedtrees.attacks.reconstruction.targets import announced_moments
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, LeafCounts, Records
from fedtrees.core.errors import check_known
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View

SUMS = LEVELS[:2]


@register.attack("joint")
@dataclass(frozen=True, kw_only=True)
class Joint(Options, Attack):
    """Reconstruct training rows from all trees at once, by Markov chain Monte Carlo.

    TimberStrike assigns rows to leaves tree by tree and cannot revise an assignment. This attack,
    which is not from a paper, starts from its result and changes rows until they agree with the
    leaf sums of all trees.

    If clients grow trees on their local data and share them, the rows of each client are
    reconstructed separately. They pass through the trees of all clients, but only the trees of the
    client itself constrain them. If all columns have declared codes and few tables are possible,
    the posterior of every table is computed instead
    (`fedtrees.attacks.reconstruction.exact_posterior`).

    Parameters
    ----------
    max_level : {"statistics", "values"}
        Most detailed statistics that the attack may use: sums per leaf, or only leaf values. The
        attack does not use histograms, except for the posterior over all tables.
    chains, moves, samples, ...
        Options of the search, see `Options`.
    """

    claims = (Records, LeafCounts)

    supports_regression: ClassVar[bool] = True

    max_level: Level = "statistics"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("max_level", self.max_level, SUMS)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply, None if it does.

        It does not apply without boosted trees, or for more than two classes if trees are grown on
        samples of the rows.
        """
        why = no_trees(view, supports_regression=True)
        if why is None and (classes_of_leaves(view) or 2) > 2 and some_rows(view):
            return some_rows(view)
        return why

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct the victims' rows, and the class counts of the leaves of the first tree.

        Parameters
        ----------
        view : View
            Messages of the training.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        guess : Guess
            `Records` and `LeafCounts`. The guess is empty if the view contains no boosted trees.
        """
        if self.max_level == "values":
            return self._reconstruct(view, None, rng)
        read = counts_read_back(view)
        return with_counts_read_back(self._reconstruct(view, read, rng), view, read)

    def _reconstruct(
        self, view: View, read: Sequence[FirstTreeCounts] | None, rng: np.random.Generator
    ) -> Guess:
        victims = observe_clients(view, max_level=self.max_level)
        # the posterior over all tables also uses histograms
        level = "values" if self.max_level == "values" else "histograms"
        together = None if victims else read_boosting(view, level)
        seen = [v.evidence for v in victims] if together is None else [together]
        enumerated = self._enumerated(view, seen) if seen else None
        if enumerated is not None:
            return enumerated
        # Sums that clients send with their trees are float32, too imprecise for the exact search.
        exact = self.exact and not (victims and victims[0].blocks)
        options = replace(self, exact=exact)  # type: ignore[call-arg]
        certain = counts_of(read) if read and not victims else ()
        moments = None if victims else announced_moments(view)

        def one(evidence: BoostingObservations) -> Guess:
            return reconstruct(evidence, view.rows, view.schema, options, rng, certain, moments)

        return reconstruct_rows(
            view, victims, self.max_level, one, rng, sketches=self.sketches, bins=False
        )

    def _enumerated(self, view: View, evidence: Sequence[BoostingObservations]) -> Guess | None:
        """Return the guess from the exact posterior, None if too many tables are possible."""
        if not self.exact or view.weighted:
            return None
        own_rows = Table.empty(view.schema) if view.rows is None else view.rows
        quantile_cuts = cuts_are_of_rows(view)
        public = params_of(view), view.schema, own_rows, quantile_cuts
        return enumerate_tables([Training(one, *public) for one in evidence], self.max_trees)
