"""How a defense wants cut points settled, in place of the protocol's way."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CutPlan:
    """How cut points are settled.

    `method`: {"sketch", "equal-width", "public", "grid"}. As in the protocols; ``grid``: from
    counts in the cells of a public grid.
    `cells, rounds`: Of a grid: cells per feature, and how often they are counted, finer where the
    rows are. Of declared cut points of LightGBM: how many, at most.
    `epsilon`: What all counts together cost one row, in nats, where they carry noise.
    `fill`: Whether bins that declared cut points leave over are cut among a party's own values.
    """

    method: str
    cells: int = 0
    rounds: int = 1
    epsilon: float | None = None
    fill: bool = False

    def count_scale(self, features: int) -> float:
        """Return the scale of the noise on each count, in rows, where so many features have one.

        A row is in one cell of every feature, in every round.
        """
        return 0.0 if self.epsilon is None else self.rounds * features / self.epsilon
