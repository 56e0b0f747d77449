"""Compare each attack with the same attack that ignores one piece of its evidence.

``python -m fedtrees.benchmarks.papers evidence_read --data-dir FOLDER`` runs both on the same
trainings with the same seeds, for every compatible defense. The table marks lines in which the
attack scores lower with more evidence.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from fedtrees.benchmarks.papers.study import Study, train_federation
from fedtrees.benchmarks.papers.tables import Table, percent
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.experiments.evaluate import score_guess
from fedtrees.protocols.views import view_of

TABLES = ("breast-cancer", "pima", "obesity", "diabetes")
SEEDS = (0, 1, 2)
CLIENTS = 3
#: Every kind of change to messages. Cut points are on a grid where sketches would reveal rows.
DEFENSES = (
    "none",
    "secure-sum+dp-grid-cuts[epsilon=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=0.1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+laplace-hist[epsilon=16]",
    "secure-sum+dp-grid-cuts[epsilon=1]+laplace-hist[epsilon=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+min-bin",
    "laplace-gradient[epsilon=5]",
    "sketch-rounding",
    "dp-quantile-cuts[epsilon=1]",
    "split-only",
)
#: Defenses for protocols in which clients send trees.
SHARED = ("none", "split-only", "split-only+leaf-rounding[decimals=2]", "mask-sum-hessian")


@dataclass(frozen=True)
class Pair:
    """An attack, and the same attack without one piece of evidence.

    Attributes
    ----------
    read, ignored : str
        The attack with and without the evidence.
    evidence : str
        The piece of evidence.
    metric : str
        Score that is compared.
    """

    read: str
    ignored: str
    evidence: str
    metric: str = "ra"

    @property
    def attack(self) -> str:
        """Name of the attack without parameters."""
        return self.read.partition("[")[0]


_JOINT = "joint[steps=50000]"
PAIRS = (
    Pair("timberstrike", "timberstrike[max_level=statistics]", "bins"),
    Pair("timberstrike[max_level=statistics]", "timberstrike[max_level=values]", "node sums"),
    Pair("timberstrike", "timberstrike[noise=ignored]", "that sums are off"),
    Pair("timberstrike", "timberstrike[sketches=false]", "sketches"),
    Pair("timberstrike", "timberstrike[use_prior=false]", "own rows"),
    Pair("timberstrike", "timberstrike[max_level=values]", "all sums", "leaf_mass_exact"),
    Pair(_JOINT, "joint[steps=50000,max_level=values]", "node sums"),
    Pair(_JOINT, "joint[steps=50000,exact=false]", "that sums are exact"),
    Pair(_JOINT, "joint[steps=50000,sketches=false]", "sketches"),
    Pair(_JOINT, "joint[steps=50000,max_level=values]", "node sums", "leaf_mass_exact"),
    Pair("lattice", "lattice[base_score=unknown]", "base score", "leaf_mass_exact"),
    Pair("histogram-peeling", "histogram-peeling[sketches=false]", "sketches", "exact_rows"),
)
#: Additional pairs for protocols in which trees can be attributed to clients.
APART = (
    *(pair for pair in PAIRS if pair.attack in ("timberstrike", "joint")),
    Pair(
        "timberstrike", "timberstrike[linkage_statistics=hessian]", "gradients, thresholds as clues"
    ),
    Pair("timberstrike", "timberstrike[base_scores=model]", "own base scores"),
)
_ORDERING = Pair(
    "split-ordering", "split-ordering[own_columns=false]", "own columns", "rank_correlation"
)


@dataclass(frozen=True)
class Seat:
    """A protocol and an adversary, with the defenses and the pairs that are compared."""

    protocol: str
    threat: str
    defenses: Sequence[str]
    pairs: Sequence[Pair] = PAIRS

    def fits(self, defense: str) -> bool:
        """Return whether a defense changes the messages that this adversary sees."""
        if self.protocol == "nvflare-hist" and defense.startswith("split-only"):
            return False
        summed = self.threat == "server" or self.protocol == "nvflare-hist"
        return summed or "secure-sum+" not in defense


#: Adversaries that see bins without and with local rows, adversaries that see clients' trees, and
#: the active party of the vertical partition.
SEATS = (
    Seat("fedtree-hist", "server", DEFENSES),
    Seat("nvflare-hist", "client", DEFENSES),
    Seat("fedtree-hist", "client", DEFENSES),
    Seat("flower-bagging", "client", SHARED, APART),
    Seat("flower-cyclic", "server", SHARED, APART),
    Seat("secureboost", "active", ("none", "reduced-leakage"), (_ORDERING,)),
)


@dataclass(frozen=True)
class Line:
    """Scores of one attack with and without a piece of evidence, as shares per seed."""

    data: str
    seat: Seat
    defense: str
    pair: Pair
    ignored: tuple[float, ...]
    read: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """Score with the evidence minus score without it, per seed."""
        return [b - a for a, b in zip(self.ignored, self.read, strict=True)]

    @property
    def worse(self) -> bool:
        """Whether the evidence lowers the score by more than two standard errors and 0.003."""
        spread = stdev(self.gains) if len(self.gains) > 1 else 0.0
        return mean(self.gains) < -max(2 * spread / len(self.gains) ** 0.5, 0.003)


def measure_evidence(
    data: str,
    seat: Seat,
    defense: str,
    seeds: Sequence[int] = SEEDS,
    data_dir: str | None = None,
    **settings: int,
) -> Iterator[Line]:
    """Yield a line for each piece of evidence that changes a score.

    Parameters
    ----------
    data : str
        Data set.
    seat : Seat
        Protocol and adversary.
    defense : str
        Defense.
    seeds : sequence of int
        Seeds of the trainings.
    data_dir : str or None
        Folder of the data sets.
    **settings : int
        Parameters of the protocol.
    """
    scores: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        spec = Spec(seat.protocol, {"trees": 10, "max_depth": 4, **settings})
        run, federation, setting = train_federation(
            data, spec, CLIENTS, seed, data_dir, defense=defense
        )
        principals = (f"client-{CLIENTS - 1}",) if seat.threat == "client" else (seat.threat,)
        view = view_of(run, principals, federation.local_data)
        case = federation.case(dict(setting.roles), principals, seed, seat.threat, run)
        for name in dict.fromkeys(a for pair in seat.pairs for a in (pair.read, pair.ignored)):
            (attack,) = (register.make("attack", s) for s in parse_grid(name))
            value_of_metric: dict[str, float] = {}
            if attack.inapplicable(view) is None:
                guess = attack.run(view, np.random.default_rng(seed))
                rows = score_guess(attack.name, guess, case, None)
                value_of_metric = {r["metric"]: r["value"] for r in rows}
            scores.setdefault(name, []).append(value_of_metric)
    for pair in seat.pairs:
        read, less = (
            tuple(s.get(pair.metric) for s in scores[a]) for a in (pair.read, pair.ignored)
        )
        if less != read and None not in read + less:
            yield Line(data, seat, defense, pair, less, read)  # type: ignore[arg-type]


def run(options: Namespace) -> Iterator[Table]:
    """Yield the table. Lines in which evidence lowers the score are last."""
    seeds, trees = range(options.seeds), options.trees
    lines = [
        line
        for data in options.tables
        for seat in SEATS
        for defense in seat.defenses
        if seat.fits(defense)
        for line in measure_evidence(data, seat, defense, seeds, options.data_dir, trees=trees)
    ]
    header = (
        "table", "protocol", "threat", "defense", "attack", "evidence", "score", "ignored", "used",
    )  # fmt: skip
    cells = [
        [
            *(line.data, line.seat.protocol, line.seat.threat, f"`{line.defense}`"),
            *(line.pair.attack, line.pair.evidence, line.pair.metric),
            *(percent(part) for part in (line.ignored, line.read)),
        ]
        for line in sorted(lines, key=lambda line: line.worse)
    ]
    worse = sum(line.worse for line in lines)
    title = (
        "Percent, mean ± standard deviation over seeds. "
        f"{worse} of {len(lines)} scores are lower if the evidence is used."
    )
    yield Table(title, header, cells)


STUDIES = {
    "evidence_read": Study(
        "Attacks with and without one piece of evidence, on the same trainings.",
        run,
        {
            "--tables": {"nargs": "+", "default": TABLES, "help": "data sets"},
            "--seeds": {"type": int, "default": len(SEEDS), "help": "number of seeds"},
            "--trees": {"type": int, "default": 10, "help": "number of trees"},
        },
    )
}
