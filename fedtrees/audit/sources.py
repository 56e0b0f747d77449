"""Which client a tree comes from, where the trees of several were joined into one model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.float64]

MOST_CLIENTS = 50
SAME = 1e-6  # relative difference of sums, a few roundings of a float32, that shows no clients
# Share of the variance of log H around a cubic trend that clients taking turns leave unexplained.
TURNS = 0.15


@dataclass(frozen=True)
class Sources:
    """How the trees of a model divide among clients."""

    kind: str  # one table; bagging: each client's tree per round; turns: one after the other
    clients: int
    names: tuple[str | None, ...]  # client of each tree, None where it does not follow
    how: str  # it follows


def find_sources(
    base_scores: Sequence[float | None],
    h: Floats,
    rates: Sequence[float | None] = (),
    apart: bool = True,
) -> Sources:
    """Divide T trees among clients.

    Of each tree: the base score, None where rows entered with several predictions; the root's sum
    of hessians, NaN where unknown; the learning rate, where all follow. Trees that start from one
    base score are of clients if they are known to be of rows that are `apart`.
    """
    starts = np.flatnonzero([p is not None for p in base_scores])
    total, several = len(base_scores), len(starts) > 1 and apart
    if several and len(set(rates)) == len(starts) and None not in rates:
        return _by_rate(rates)
    if several:
        return _bagging(starts, total, h)
    clients, block = _turns(h)
    if clients:
        turns = tuple(f"client {1 + t // block % clients}" for t in range(total))
        each = f", {block} trees each time" if block > 1 else ""
        how = (
            f"root sums repeat with period {clients * block}: {clients} clients seem to have taken "
            f"turns{each} (likely, not certain)"
        )
        return Sources("turns", clients, turns, how)
    names = (None,) * total
    return Sources("one", 1, names, "nothing in the file tells more than one source apart")


def _bagging(starts: NDArray[np.intp], total: int, h: Floats) -> Sources:
    """Follow each client from round to round by Hungarian matching of root H.

    The first round seeds it (Di Gennaro et al. 2025, Sec. 5.3).
    """
    clients, block = len(starts), _block(starts, total)
    names: list[str | None] = [None] * total
    ends = starts + 1 if block is None else [*starts[1:], starts[-1] + block]
    for c, (t, end) in enumerate(zip(starts, ends, strict=True)):
        names[t:end] = [f"client {c + 1}"] * (end - t)
    if block is None:
        how = "later trees are of no regular number: more clients may have joined"
    elif not np.isfinite(h).all():
        how = "of later trees nothing tells whose they are"
    else:
        how = "later trees are matched by the sums of their roots (likely, not certain)"
        at = starts
        for start in range(int(starts[-1]) + block, total, clients * block):
            now = start + np.arange(clients) * block
            # The paper takes absolute differences of root H and G. Squares keep clients in the
            # order of their sizes when all sums fall, as in early rounds; G made it worse (6
            # clients: 50% of later trees right without, 35% with).
            distance = (h[at][:, None] - h[now]) ** 2 / h[at][:, None]
            at = now[linear_sum_assignment(distance)[1]]
            for c, where in enumerate(at.tolist()):
                names[where : where + block] = [f"client {c + 1}"] * block
    begin = f"the first trees of {clients} clients start from base scores of their own; "
    return Sources("bagging", clients, tuple(names), begin + how)


def _by_rate(rates: Sequence[float | None]) -> Sources:
    """Name a client for each learning rate, in the order in which they appear."""
    number = {rate: f"client {k + 1}" for k, rate in enumerate(dict.fromkeys(rates))}
    listed = ", ".join(f"{rate:g}" for rate in number)
    how = f"{len(number)} clients shrink their leaves each by an own learning rate: {listed}"
    return Sources("bagging", len(number), tuple(number[rate] for rate in rates), how)


def _block(starts: NDArray[np.intp], total: int) -> int | None:
    """Return how many trees in a row are of one client, None where no number fits all rounds.

    Flower's server keeps all trees of the very first reply, and of every later one the first tree.
    """
    first, others = int(starts[1]), np.diff(starts)[1:]
    fitting = [
        block
        for block in sorted({first, 1})
        if starts[0] == 0
        and (others == block).all()
        and (total - (first - block)) % (len(starts) * block) == 0
    ]
    return fitting[0] if len(fitting) == 1 else None


def _turns(h: Floats) -> tuple[int, int]:
    """Return how many clients take turns and their trees each time, (0, 0) where none seem to.

    The logarithm of root H is then a smooth trend and a step for each client.
    """
    n = len(h)
    if n < 6 or not (np.isfinite(h).all() and (h > 0).all()):
        return 0, 0
    y, trend = np.log(h), np.vander(np.linspace(-1, 1, n), 4)
    alone = _left_over(trend, y)
    if alone < n * SAME**2:
        return 0, 0

    def fits(clients: int, block: int) -> bool:
        steps = np.eye(clients)[np.arange(n) // block % clients][:, 1:]
        return _left_over(np.column_stack([trend, steps]), y) < TURNS * alone

    for period in range(2, min(MOST_CLIENTS, n // 3) + 1):
        if fits(period, 1):  # the same with fewer clients, who add several trees each time?
            fewer = (c for c in range(2, period) if period % c == 0 and fits(c, period // c))
            clients = next(fewer, period)
            return clients, period // clients
    return 0, 0


def _left_over(columns: Floats, y: Floats) -> float:
    fitted = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    return float(((y - fitted) ** 2).sum())
