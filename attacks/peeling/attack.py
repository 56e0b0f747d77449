"""Histogram peeling as an attack on a view."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtrees.attacks.clients.per_client import observe_client_histograms
from fedtrees.attacks.counts.leaf_sums import counts_bins
from fedtrees.attacks.observations.applicability import classes_of_leaves, shows, squared_error
from fedtrees.attacks.observations.columns import Column, columns_of
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import EVERYONE, OTHERS, law_of_rows
from fedtrees.attacks.observations.rows_from_columns import pool_columns, victims_rows
from fedtrees.attacks.peeling.annealing import CHAINS, LIKELY, Sought, likely_rows
from fedtrees.attacks.peeling.bin_values import (
    lower_edges,
    owners_of,
    ranges_of,
    room_of,
    sketched_values,
    to_bins,
    values_in,
)
from fedtrees.attacks.peeling.class_histograms import (
    CountedSources,
    coins,
    counted_sources,
    counts_are_altered,
    presence,
)
from fedtrees.attacks.peeling.fingerprints import marked_rows
from fedtrees.attacks.peeling.peel import LEAST_CONFIDENCE, MOST_WORK, peel
from fedtrees.attacks.peeling.regression_peeling import (
    SURE_NUMBER,
    CountedBins,
    first_rows,
    read_off,
)
from fedtrees.attacks.peeling.row_support import SURE, Search
from fedtrees.attacks.peeling.rows import Ints, ReadRows, Residual, take_out
from fedtrees.attacks.peeling.sources import (
    Sources,
    machine_columns,
    machine_sources,
    machines_with_whole_sums,
    sources_of,
)
from fedtrees.core.attack import Attack
from fedtrees.core.channel import Channel
from fedtrees.core.claims import Guess, Records
from fedtrees.core.errors import UsageError, check_positive
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.forests import ClassCounts
from fedtrees.messages.horizontal import GlobalHistogram, Histogram
from fedtrees.trees.binning import Cuts


@register.attack("histogram-peeling")
@dataclass(frozen=True, kw_only=True)
class HistogramPeeling(Attack):
    """Read training rows from gradient or class histograms, and return only reliable ones.

    This attack is not in a paper. It needs the histograms of every client (for the server, whose
    rows then have an owner), or only their sums (for every client under all-reduce, or for the
    server under a secure sum), or all histograms of one LightGBM machine. See
    docs/studies/peeling.md.

    Attributes
    ----------
    work : float
        Limit on elementary steps per source, of about 20 nanoseconds each. A large table gives a
        partial result, with the note ``finished`` 0.
    confidence : float
        Rows with a smaller probability of being correct are not returned, in [0, 1]. With class
        counts, certain rows have 0.999, and rows that all counts together make likely have 0.95.
    sketches : bool
        If victims' sketches are seen, their values fill the bins, and rows from sums get the owner
        whose columns contain them.
    """

    claims = (Records,)

    supports_regression: ClassVar[bool] = True

    work: float = MOST_WORK
    confidence: float = LEAST_CONFIDENCE
    sketches: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.confidence, bool) or not 0 <= self.confidence <= 1:
            raise UsageError(f"confidence={self.confidence!r}: give a probability, 0 to 1")
        check_positive("work", self.work)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if there are no histograms to peel, else None."""
        if shows(view, ClassCounts) or machines_with_whole_sums(view):
            return None
        if not shows(view, Histogram, GlobalHistogram):
            return Reason("no-histograms")
        if squared_error(view):
            seen = read_boosting(view)
            return None if seen is None or counts_bins(seen) else Reason("numbers-off")
        if (classes_of_leaves(view) or 2) > 2:
            return Reason("several-probabilities")
        if classes_of_leaves(view) is None:
            return Reason("other-leaves")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return rows of the victims, with owner if single histograms were seen."""
        machines = bool(machines_with_whole_sums(view))
        if not machines and not shows(view, Histogram, GlobalHistogram):
            return self._of_classes(view, rng)
        if squared_error(view):
            return self._of_numbers(view, rng)
        own_rows = Table.empty(view.schema) if view.rows is None else view.rows
        sources = machine_sources(view) if machines else sources_of(view)
        if sources is None:
            return _unreadable()
        law = law_of_rows(view)
        peeled: list[ReadRows] = []
        for owner, left in sources.parts.items():
            # A sum over all clients contains the local rows, which are subtracted first.
            own_bins = to_bins(sources.cuts, own_rows.X) if owner == EVERYONE else None
            if view.defense.requirements.unit_hessian:
                peeled.append(self._read_marked_rows(sources, left, law, own_bins))
                continue
            if own_bins is not None:
                take_out(sources.forest, left, own_bins, own_rows.y)
            peeled.append(peel(sources.forest, left, self.work, self.confidence))
        columns = (machine_columns if machines else columns_of)(view) if self.sketches else {}
        records = _records(
            view, sources.cuts, dict(zip(sources.parts, peeled, strict=True)), columns, rng
        )
        return Guess.of(
            (records,),
            otherwise=Reason("no-certain-rows"),
            notes={
                "readable": 1.0,
                "trees_read": float(sources.forest.trees),
                "checksum_failures": float(sum(p.rejected for p in peeled)),
                "finished": float(all(p.finished for p in peeled)),
                "work": float(sum(p.work for p in peeled)),
                "bins_unexplained": float(sum(p.unexplained for p in sources.parts.values())),
            },
        )

    def _of_numbers(self, view: View, rng: np.random.Generator) -> Guess:
        """Return certain rows with numeric targets."""
        joint = read_boosting(view)
        assert joint is not None
        assert joint.observed.cuts is not None
        cuts, d = joint.observed.cuts, len(view.schema.features)
        likely = (view.prior_rows or Table.empty(view.schema)).X
        ranges, edges = ranges_of(view.schema, likely, cuts), lower_edges(cuts, view)
        tables, owners = [Table(np.zeros((0, d), np.float32), np.zeros(0))], list[str]()
        for owner, evidence in (observe_client_histograms(view) or {"": joint}).items():
            counted = CountedBins.of(evidence)
            if evidence.observed.own_in_bins and view.rows is not None:
                counted.take_out(to_bins(cuts, view.rows.X), view.rows.y)
            read_rows, sure = read_off(counted, first_rows(counted), np.zeros((0, d + 1)), rng)
            if self.confidence > SURE_NUMBER:
                sure[:] = False
            X = values_in(cuts, view.schema, read_rows.bins[sure], likely, ranges, rng, edges)
            tables.append(Table(X, counted.targets(read_rows.g[sure])))
            owners += [owner] * int(sure.sum())
        table = Table.concat(tables)
        confidence = np.full(len(table), SURE_NUMBER)
        named = tuple(owners) if owners and all(owners) else None
        notes = {"readable": 1.0, "trees_read": float(len(joint.trees))}
        records = Records(table, confidence, named)
        return Guess.of((records,), notes, otherwise=Reason("no-certain-rows"))

    def _read_marked_rows(
        self, sources: Sources, left: Residual, law: Channel | None, own_bins: Ints | None
    ) -> ReadRows:
        """Read rows that the noise on their gradients distinguishes, except for local ones."""
        d = len(sources.forest.offsets) - 1
        if law is None:
            return ReadRows(np.zeros((0, d), np.int32), np.zeros(0, np.int64), np.zeros(0))
        marked = marked_rows(sources.forest, left, law)
        # The sums may contain the local rows. As many equal rows as the adversary has are not
        # returned.
        spare = Counter(map(tuple, [] if own_bins is None else own_bins.tolist()))
        accepted = marked.confidence >= self.confidence
        for i, row in enumerate(map(tuple, marked.bins.tolist())):
            if spare[row] > 0:
                spare[row] -= 1
                accepted[i] = False
        bins, y, sure = marked.bins[accepted], marked.y[accepted], marked.confidence[accepted]
        return replace(marked, bins=bins, y=y, confidence=sure)

    def _of_classes(self, view: View, rng: np.random.Generator) -> Guess:
        """Return rows from class counts per bin."""
        sources = (
            None if counts_are_altered(view) or self.confidence > SURE else counted_sources(view)
        )
        if sources is None:
            return _unreadable()
        own_rows = Table.empty(view.schema) if view.rows is None else view.rows
        supported: dict[str, ReadRows] = {}
        columns = columns_of(view) if self.sketches else {}
        for owner, counts in sources.parts.items():
            likely = presence(view, owner, int(counts.nodes[0].sum()))
            known_rows = own_rows if owner == EVERYONE else Table.empty(view.schema)
            search = Search(sources.forest, counts, likely, view.n_rows, self.work)
            supported[owner] = search.rows(to_bins(sources.cuts, known_rows.X), known_rows.y)
            owner_columns = columns.get(
                owner, pool_columns(view) if owner == EVERYONE and columns else None
            )
            if (
                self.confidence <= LIKELY
                and owner_columns is not None
                and all(c.exact for c in owner_columns)
            ):
                supported[owner] = _with_likely(
                    view, sources, search, supported[owner], known_rows, owner_columns, rng
                )
        return Guess.of(
            (_records(view, sources.cuts, supported, columns, rng),),
            otherwise=Reason("no-certain-rows"),
            notes={
                "readable": 1.0,
                "trees_read": float(sources.forest.trees),
                "finished": float(all(s.finished for s in supported.values())),
                "work": float(sum(s.work for s in supported.values())),
            },
        )


def _with_likely(
    view: View,
    sources: CountedSources,
    search: Search,
    sure: ReadRows,
    own_rows: Table,
    columns: Sequence[Column],
    rng: np.random.Generator,
) -> ReadRows:
    """Return certain rows, and rows that counts and columns make likely."""
    draws, cuts = int(search.counts.nodes[0].sum()), sources.cuts
    rows = max(draws - len(own_rows), *(c.present for c in columns))
    room = room_of(cuts, columns, rows)
    # Masks number the bins of a feature and then its missing values, while `room_of` returns the
    # missing values of all features at the end.
    left = np.insert(room[: cuts.total_bins], cuts.offsets[1:], room[cuts.total_bins :])
    last = np.diff(search.state.offsets) - 1
    at = search.state.offsets[:-1] + np.where(sure.bins < 0, last, sure.bins)
    # The certain rows occupy their places. If there is not enough room, the sketches contradict
    # them and are not used.
    np.subtract.at(left, at.ravel(), 1)
    if search.whole or len(sure.y) == rows or (left < 0).any():
        return sure
    bins = np.concatenate([to_bins(cuts, own_rows.X), sure.bins])
    odds = coins(view, draws, rows + len(own_rows))
    sought = Sought(bins, np.concatenate([own_rows.y, sure.y]), left, *odds)
    seeds = rng.integers(0, 1 << 62, CHAINS)
    spare = search.most_work - sure.work
    return sure.append(*likely_rows(search.state, search.counts, sought, seeds, spare), LIKELY)


def _unreadable() -> Guess:
    return Guess.none(Reason("histograms-unreadable"), {"readable": 0.0})


def _records(
    view: View,
    cuts: Cuts,
    rows_by_owner: Mapping[str, ReadRows],
    columns: Mapping[str, Sequence[Column]],
    rng: np.random.Generator,
) -> Records:
    """Convert rows of bins to rows of values.

    A bin gets a value that its owner has in it, if a sketch reveals the owner's values, or else a
    value that rows of the prior (`View.prior_rows`) have in it, or else its middle.
    """
    likely = view.prior_rows or Table.empty(view.schema)
    bins = np.concatenate([p.bins for p in rows_by_owner.values()])
    y = np.concatenate([p.y for p in rows_by_owner.values()])
    ranges = ranges_of(view.schema, likely.X, cuts)
    X = values_in(cuts, view.schema, bins, likely.X, ranges, rng, lower_edges(cuts, view))
    owner: list[str] | None = [o for o, p in rows_by_owner.items() for _ in p.y]
    if EVERYONE in rows_by_owner or OTHERS in rows_by_owner:
        names = list(columns)
        owner = None
        if columns and pool_columns(view) is not None:
            found_in = owners_of(bins, cuts, columns, victims_rows(view))
            owner = [names[k] for k in found_in]
    for name, parts in columns.items():
        of_owner = np.array([o == name for o in owner or ()], dtype=bool)
        if of_owner.any():
            values = sketched_values(cuts, bins[of_owner], parts, view.schema.categorical)
            X[of_owner] = np.where(np.isnan(values), X[of_owner], values)
    confidence = np.concatenate([p.confidence for p in rows_by_owner.values()])
    return Records(Table(X, y), confidence, None if owner is None else tuple(owner))
