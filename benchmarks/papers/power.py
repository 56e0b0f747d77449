"""Measure how much noise a mechanism can lack before the audit notices.

``python -m fedtrees.benchmarks.papers power`` audits every mechanism with its full noise and with
parts of it.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean
from time import process_time
from typing import Any
from unittest.mock import patch

from fedtrees.benchmarks.papers.study import Study
from fedtrees.benchmarks.papers.tables import Table
from fedtrees.core.defense import ExampleStage
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.defenses import cut_points, dp_sgd, label_noise
from fedtrees.experiments.epsilon_audit import Audited, audit
from fedtrees.experiments.evaluate import make_defense
from fedtrees.privacy import noise
from fedtrees.privacy.mechanisms import odds_within
from fedtrees.privacy_audit.canaries import choose_audit_setting
from fedtrees.protocols.forests import dp_forest
from fedtrees.protocols.horizontal import dp_gbdt, ebm
from fedtrees.report.guarantees import refuted

_HIST, _COLUMNS, _LAPLACE = "fedtree-hist", "secureboost", "laplace-hist[epsilon=1,calibrated=true]"
#: Protocol and defense of every mechanism that adds noise for an epsilon, and compositions of them.
MECHANISMS = (
    (_HIST, _LAPLACE),
    (_HIST, "laplace-hist[epsilon=1]"),
    (_HIST, f"secure-sum+{_LAPLACE}"),
    (_HIST, f"{_LAPLACE}+hist-rounding[step=0.5]+min-bin[k=2]"),
    (_HIST, "dp-grid-cuts[epsilon=1]"),
    (_HIST, "dp-quantile-cuts[epsilon=1]"),
    (_HIST, f"dp-grid-cuts[epsilon=1]+{_LAPLACE}"),
    (_HIST, f"dp-quantile-cuts[epsilon=1]+{_LAPLACE}"),
    (_HIST, "laplace-gradient[epsilon=1]"),
    ("dp-forest[epsilon=1]", "none"),
    ("dp-forest[epsilon=1,noise=distributed]", "none"),
    ("dp-forest[epsilon=1,mechanism=published]", "none"),
    ("dp-forest[epsilon=1,mechanism=majority]", "none"),
    ("dp-gbdt[epsilon=1]", "none"),
    ("dp-gbdt[epsilon=1,noise=distributed]", "none"),
    ("dp-ebm[epsilon=1]", "none"),
    (_COLUMNS, "lp-1st[epsilon=1]"),
    ("vertical-forest", "lp-mst[epsilon=1]"),
    (_COLUMNS, "grafting-ldp[epsilon=1]"),
    ("fedsgd-mlp", "dp-sgd[epsilon=1]"),
    ("vertical-regression", "dp-gd[epsilon=1,parties=2]"),
)
NOISE = {"1": 1, "1/2": 2, "1/4": 4, "1/16": 16}
# Divisor of the number of trainings in repetitions. The level of a bound is the same for fewer
# trainings.
_FEWER = 16

Draw = Callable[..., Any]


def _weaken_argument(at: int, less: Callable[[Any, float], Any]) -> Callable[[Draw, float], Draw]:
    """Return a function that weakens a mechanism by changing its argument at position `at`."""

    def weaker(draw: Draw, k: float) -> Draw:
        return lambda *args, **options: draw(
            *args[:at], less(args[at], k), *args[at + 1 :], **options
        )

    return weaker


def _last_row(rows: Draw, k: float) -> Draw:
    """Return a hook that divides the last row, the noise of a step, by k."""

    def weaker(part: Any, stage: ExampleStage, values: Any, ctx: Any) -> Any:
        changed = rows(part, stage, values, ctx)
        if stage.kind == "example-gradients":
            changed[-1] /= k
        return changed

    return weaker


def _by_library(estimator: Draw, k: float) -> Draw:
    """Return estimators for which interpret-core divides the noise by k."""

    def weaker(protocol: Any, *args: Any) -> Any:
        instance = estimator(protocol, *args)
        from interpret.utils._native import Native

        draw, fit = Native.generate_gaussian_random, instance.fit

        def weak(native: Any, rng: Any, stddev: float, count: int) -> Any:
            return draw(native, rng, stddev / k, count)

        def less(*rows: Any) -> Any:
            with patch.object(Native, draw.__name__, weak):
                return fit(*rows)

        instance.fit = less
        return instance

    return weaker


_scale = _weaken_argument(0, lambda scale, k: scale / k)
#: Places where noise is drawn, with the function that divides it by k.
_DRAWS: tuple[tuple[Any, str, Callable[[Draw, float], Draw]], ...] = (
    (noise, "discrete_laplace", _scale),
    (noise, "truncated_laplace", _scale),
    (noise, "discrete_gaussian", _scale),
    (cut_points, "discrete_laplace_share", _scale),
    (dp_forest, "discrete_laplace_share", _scale),
    (dp_gbdt, "discrete_gaussian_share", _scale),
    (ebm.DPEBM, "estimator", _by_library),
    (cut_points, "discrete_laplace", _scale),
    (cut_points, "private_quantiles", _weaken_argument(4, lambda epsilon, k: epsilon * k)),
    (dp_forest, "permute_and_flip", _weaken_argument(1, lambda epsilon, k: epsilon * k)),
    (label_noise, "respond", _weaken_argument(2, lambda odds, k: odds_within(k * math.log(odds)))),
    (dp_sgd.DPSGD, "transform_examples", _last_row),
)


@contextmanager
def weaken_noise(k: float) -> Iterator[None]:
    """Let all mechanisms draw 1/k of their noise while claims and accounts assume all of it."""
    with ExitStack() as stack:
        for where, name, weaker in _DRAWS if k != 1 else ():
            stack.enter_context(patch.object(where, name, weaker(getattr(where, name), k)))
        yield


@dataclass(frozen=True)
class Cell:
    """One audit, and its duration in CPU seconds."""

    outcome: Audited
    seconds: float

    @property
    def refuted(self) -> bool:
        """Whether the audit demonstrated a larger epsilon than was spent."""
        return refuted(self.outcome.claimed, self.outcome.spent, (self.outcome.measured,))

    @property
    def too_little(self) -> bool:
        """Whether noisy sums are closer to the true ones than the stated noise allows."""
        return self.outcome.noise is not None and self.outcome.noise.too_little

    @property
    def epsilon(self) -> float:
        """Epsilon that the audit demonstrated."""
        return self.outcome.measured.epsilon


def audit_mechanism(protocol: str, defense: str, k: float, seed: int, fewer: int = 1) -> Cell:
    """Audit a mechanism that draws 1/k of its noise.

    Parameters
    ----------
    protocol, defense : str
        The mechanism.
    k : float
        Divisor of the noise.
    seed : int
        Seed of the audit.
    fewer : int
        Divisor of the number of trainings.
    """
    protocol_object, defense_object = (
        register.make("protocol", parse_one(protocol).parts[0]),
        make_defense(parse_one(defense)),
    )
    _, canaries = choose_audit_setting(protocol_object, defense_object)
    assert canaries is not None
    n_trainings = canaries.runs
    begun = process_time()
    with weaken_noise(k):
        result = audit(
            protocol_object, defense_object, runs=max(n_trainings // fewer, 1), seed=seed
        )
    return Cell(result, process_time() - begun)


def line(protocol: str, defense: str, seeds: int, repeats: int) -> list[str]:
    """Return the line of a mechanism: demonstrated epsilon by share of noise, and false alarms.

    Parameters
    ----------
    protocol, defense : str
        The mechanism.
    seeds : int
        Number of audits per share of the noise.
    repeats : int
        Number of audits with all noise, which count false alarms.
    """
    cells = {
        name: [audit_mechanism(protocol, defense, k, seed) for seed in range(seeds)]
        for name, k in NOISE.items()
    }
    all_cells = [cell for group in cells.values() for cell in group]
    # Audits with all noise must not refute the claim more often than their level allows.
    honest = [audit_mechanism(protocol, defense, 1, seeds + i, _FEWER) for i in range(repeats)]
    spent = [g.budget[1] for g in all_cells[0].outcome.spent if g.budget]
    return [
        f"`{protocol}`" if defense == "none" else f"`{defense}`",
        f"{spent[-1]:.3g}",
        *map(_format_epsilon, cells.values()),
        f"{all_cells[0].outcome.measured.most:.1f}",
        f"{max(cell.seconds for cell in all_cells):.1f}",
        f"{sum(cell.refuted for cell in honest)} of {repeats}",
        *(
            f"{sum(c.too_little for c in group)} of {len(group)}"
            for group in (cells["1/2"], honest)
        ),
    ]


def _format_epsilon(cells: list[Cell]) -> str:
    """Format the mean of demonstrated epsilons, in bold if every audit refutes the claim."""
    text, times = f"{mean(cell.epsilon for cell in cells):.2f}", sum(c.refuted for c in cells)
    return f"**{text}**" if times == len(cells) else f"{text} ({times})" if times else text


def run(options: Namespace) -> Iterator[Table]:
    """Audit all selected mechanisms and yield the table."""
    header = (
        "mechanism",
        "spent",
        *(f"noise {name}" for name in NOISE),
        "could show",
        "CPU s",
        "refuted at noise 1",
        "too little at 1/2",
        "too little at 1",
    )
    lines = []
    for protocol, defense in MECHANISMS:
        if (
            options.only not in f"{protocol} {defense}"
            or register.get("protocol", parse_one(protocol).parts[0].name).missing()
        ):
            continue
        lines.append(line(protocol, defense, options.seeds, options.repeats))
        print(*lines[-1], file=sys.stderr, flush=True)
    yield Table("Demonstrated epsilon by share of the noise.", header, lines)


STUDIES = {
    "power": Study(
        "How much noise a mechanism can lack before the audit of epsilon notices.",
        run,
        {
            "--seeds": {"type": int, "default": 3, "help": "audits per share of the noise"},
            "--repeats": {"type": int, "default": 200, "help": "audits with all of the noise"},
            "--only": {"default": "", "help": "only mechanisms whose name contains this text"},
        },
    )
}
