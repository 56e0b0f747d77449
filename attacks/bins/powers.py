"""`powers-of-two`: infer other parties' bins from the bits of sums that were planned for it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.bins.attack import columns_of
from fedtrees.attacks.bins.column_shares import shares_of_changed
from fedtrees.attacks.solvers.subset_sum import Column
from fedtrees.core.attack import Attack
from fedtrees.core.channel import chained
from fedtrees.core.claims import ColumnBins, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import OpenedBinSums

#: Probability of a bin from which it counts as determined.
SURE = 0.95
#: Smallest power of two whose bits are read, in standard deviations of the noise.
FAR = 10


@register.attack("powers-of-two")
@dataclass(frozen=True)
class PowersOfTwo(Attack):
    """Read the bins of rows from bits of sums whose statistics are distinct powers of two.

    The cheating active party assigns different powers of two to the rows of a node. A bit of a
    bin's sum is set if and only if its row is in the bin. Rows that were in no such node are
    assigned to the most frequent bin. If the noise is not far below the smallest power, all sums
    are solved jointly instead.
    """

    claims = (ColumnBins,)

    behaviours: ClassVar[tuple[str, ...]] = ("cheating",)
    threats: ClassVar[tuple[str, ...]] = ("active:cheating",)
    supports_regression: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no sums were decrypted, else None."""
        opened = any(True for _ in view.messages(OpenedBinSums))
        return None if opened else Reason("no-opened-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the bins of all rows in every column with decrypted sums."""
        claims, n_read = list[ColumnBins](), 0
        changes = view.changes(OpenedBinSums, "sums")
        unit = next((m.unit_of("sums")[0] for _, m in view.messages(OpenedBinSums)), 1.0)
        law = chained(changes)
        off = (
            0.0 if law is None else unit * float(np.sqrt(law.posterior_moments(np.zeros(1))[1][0]))
        )
        suppressed = len(changes) > (law is not None)
        for column in columns_of(view):
            bin, read = _read(column, view.n_rows, suppressed, FAR * off)
            if law is not None and not read.any():
                shares = shares_of_changed(column, changes, unit)
                bin, read = shares[:, :-1].argmax(axis=1), shares.max(axis=1) > SURE
            claims.append(ColumnBins(column.owner, column.position, view.local_data[0].ids, bin))
            n_read += int(read.sum())
        return Guess.of(claims, {"bins_named": n_read}, otherwise=Reason("no-opened-sums"))


def _read(
    column: Column, n: int, suppressed: bool, noise: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the bin of every row, -1 for none, and whether the sums determine it, (n,) each.

    If bins of few rows are `suppressed`, rows without a bit are in suppressed bins. Powers below
    `noise` units are not read, and sums are rounded to the smallest power.
    """
    bin, read = np.full(n, -1), np.zeros(n, dtype=bool)
    left = column.allowed[:, :-1].copy()
    for node in column.nodes:
        if not len(node.rows):
            continue
        which = node.contributions.argmax(axis=1)
        power = node.contributions[np.arange(len(which)), which]
        single_statistic = (node.contributions != 0).sum(axis=1) == 1
        different = len({*zip(which.tolist(), power.tolist(), strict=True)}) == len(power)
        if not (different and (single_statistic & (power > 0) & (power & (power - 1) == 0)).all()):
            continue
        if (least := power.min()) < noise:
            continue
        sums = (node.sums + least // 2) // least * least
        inside = ((sums[:-1] if suppressed else sums)[:, which] & power) > 0
        named = inside.any(axis=0) if suppressed else np.ones(len(which), dtype=bool)
        bin[node.rows[named]] = inside.argmax(axis=0)[named]
        read[node.rows[named]] = True
        if suppressed:
            left[node.rows] &= (node.sums[:-1] == 0).all(axis=1)
    bin[bin == column.allowed.shape[1] - 1] = -1
    if noise and not read.any():
        return bin, read
    if read.any():
        bin[~read] = np.bincount(bin[read] + 1).argmax() - 1
    hidden = ~read & (left.sum(axis=1) < left.shape[1]) & left.any(axis=1)
    bin[hidden], read[hidden] = left[hidden].argmax(axis=1), left[hidden].sum(axis=1) == 1
    return bin, read
