"""Plan of a defense that replaces the protocol's choice of cut points."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CutPlan:
    """Method by which cut points are chosen.

    Attributes
    ----------
    method : {"sketch", "equal-width", "public", "grid"}
        As in the protocols. ``grid``: from the number of rows in the cells of a public grid.
    cells : int
        For a grid, the number of cells per feature. For declared cut points of LightGBM, their
        maximum number.
    rounds : int
        For a grid, the number of times that cells are counted. Each round refines the cells with
        many rows.
    epsilon : float or None
        Privacy cost of all counts together for one row, in nats. None if the counts have no noise.
    fill : bool
        Whether remaining bins beyond the declared cut points are cut among the local values of a
        party.
    """

    method: str
    cells: int = 0
    rounds: int = 1
    epsilon: float | None = None
    fill: bool = False

    def count_scale(self, features: int) -> float:
        """Return the scale of the noise on each count, in rows.

        A row is in one cell of each of the `features` features in every round, so that its
        contribution has an L1 norm of ``rounds * features``.
        """
        return 0.0 if self.epsilon is None else self.rounds * features / self.epsilon
