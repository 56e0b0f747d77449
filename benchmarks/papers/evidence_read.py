"""`python -m fedtrees.benchmarks.papers.evidence_read --data-dir FOLDER`: read, and ignored.

Should more evidence score below less, a line says so: for every defense that fits, `timberstrike`
runs as it is and with one piece of its evidence ignored, on the same runs with the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from fedtrees.bench.evaluate import score_guess
from fedtrees.benchmarks.papers.study import markdown, options_of, percent, trained
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.protocols.views import view_of

TABLES = ("breast-cancer", "pima", "obesity", "diabetes")
SEEDS = (0, 1, 2)
CLIENTS = 3
#: Every kind of change to what is sent; cut points on a grid where rows would be read off else.
DEFENSES = (
    "none",
    "secure-sum+dp-grid-cuts[epsilon=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=0.1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+laplace-hist[epsilon=16]",
    "secure-sum+dp-grid-cuts[epsilon=1]+laplace-hist[epsilon=1]",
    "secure-sum+dp-grid-cuts[epsilon=1]+min-bin",
    "laplace-gradient[epsilon=5]",
    "split-only",
)
#: An attack, the same without a piece of evidence, and what that piece is.
PAIRS = (
    ("timberstrike", "timberstrike[most=statistics]", "bins"),
    ("timberstrike[most=statistics]", "timberstrike[most=values]", "node sums"),
    ("timberstrike", "timberstrike[noise=ignored]", "that sums are off"),
    ("timberstrike", "timberstrike[sketches=false]", "sketches"),
    ("timberstrike", "timberstrike[use_prior=false]", "own rows"),
)
#: Protocol and adversary: who sees the bins, without rows and with some.
SEATS = (("fedtree-hist", "server"), ("nvflare-hist", "client"), ("fedtree-hist", "client"))


@dataclass(frozen=True)
class Line:
    """One attack with a piece of evidence ignored and read: shares per seed."""

    data: str
    protocol: str
    threat: str
    defense: str
    evidence: str
    ignored: tuple[float, ...]  # reconstruction accuracy
    read: tuple[float, ...]
    exact: tuple[float, ...]  # exact rows, read

    @property
    def gains(self) -> list[float]:
        """By how much reading scores higher, per seed."""
        return [b - a for a, b in zip(self.ignored, self.read, strict=True)]

    @property
    def worse(self) -> bool:
        """Whether reading scores lower beyond the spread of the differences."""
        spread = stdev(self.gains) if len(self.gains) > 1 else 0.0
        return mean(self.gains) < -max(2 * spread / len(self.gains) ** 0.5, 0.003)


def measured(
    data: str,
    seat: tuple[str, str],
    defense: str,
    seeds: Sequence[int] = SEEDS,
    data_dir: str | None = None,
    *,
    pairs: Sequence[tuple[str, str, str]] = PAIRS,
    **settings: int,
) -> Iterator[Line]:
    """Yield a line for each piece of evidence; nothing where ignoring it changes no guess."""
    protocol, threat = seat
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        spec = Spec(protocol, {"trees": 10, "max_depth": 4, **settings})
        run, federation, setting = trained(data, spec, CLIENTS, seed, data_dir, defense=defense)
        principals = ("server",) if threat == "server" else (f"client-{CLIENTS - 1}",)
        view = view_of(run, principals, federation.holdings)
        case = federation.case(dict(setting.roles), principals, seed, threat, run)
        for name in dict.fromkeys(a for pair in pairs for a in pair[:2]):
            (attack,) = (register.make("attack", s) for s in parse_grid(name))
            guess = attack.run(view, np.random.default_rng(seed))
            found = {r["metric"]: r["value"] for r in score_guess(attack.name, guess, case, None)}
            scores.setdefault(name, []).append((found["ra"], found["exact_rows"]))
    for read, ignored, evidence in pairs:
        ra, exact = zip(*scores[read], strict=True)
        less = tuple(r for r, _ in scores[ignored])
        if less != ra:
            yield Line(data, protocol, threat, defense, evidence, less, ra, exact)


def fits(protocol: str, threat: str, defense: str) -> bool:
    """Tell whether a defense of the study goes with a protocol."""
    if protocol == "nvflare-hist" and defense.startswith("split-only"):
        return False
    return threat == "server" or "secure-sum+" not in defense or protocol == "nvflare-hist"


def main() -> None:
    """Run the study as a command and print its table; lines where reading scores lower last."""
    options = options_of("evidence_read", "--tables")
    tables = options.tables if options.tables != ["pima", "stroke"] else TABLES
    lines = [
        line
        for data in tables
        for seat in SEATS
        for defense in DEFENSES
        if fits(*seat, defense)
        for line in measured(data, seat, defense, data_dir=options.data_dir)
    ]
    header = ("table", "protocol", "who", "defense", "evidence", "ignored", "read", "exact rows")
    print("Reconstruction accuracy, percent, mean ± standard deviation over seeds.\n")
    print(
        markdown(
            header,
            [
                [
                    *(line.data, line.protocol, line.threat, f"`{line.defense}`", line.evidence),
                    *(percent(part) for part in (line.ignored, line.read, line.exact)),
                ]
                for line in sorted(lines, key=lambda line: line.worse)
            ],
        )
    )
    print(f"\n{sum(line.worse for line in lines)} of {len(lines)} score lower when read.")


if __name__ == "__main__":
    main()
