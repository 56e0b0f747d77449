"""`python -m fedtrees.benchmarks.papers.power`: how much noise can be missing and not be found?"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean
from time import process_time
from typing import Any
from unittest.mock import patch

from fedtrees.bench.evaluate import make_defense
from fedtrees.bench.measured import Audited, audit
from fedtrees.benchmarks.papers.study import markdown
from fedtrees.core.defense import Stage
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_one
from fedtrees.defenses import cut_points, dp_sgd, label_noise
from fedtrees.privacy import noise
from fedtrees.privacy.randomised_response import odds_within
from fedtrees.protocols.forests import dp_forest
from fedtrees.protocols.horizontal import dp_gbdt, ebm
from fedtrees.report.claims import refuted

_HIST, _COLUMNS, _LAPLACE = "fedtree-hist", "secureboost", "laplace-hist[epsilon=1,calibrated=true]"
#: Protocol and defense of every mechanism that adds noise for an epsilon, and of compositions.
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
_FEWER = 16  # of the trainings, in repetitions: the level of a bound is the same

Draw = Callable[..., Any]


def _asked(at: int, less: Callable[[Any, float], Any]) -> Callable[[Draw, float], Draw]:
    """Return what makes of a draw one that is asked for less, by the argument that says."""

    def weaker(draw: Draw, k: float) -> Draw:
        return lambda *args, **options: draw(
            *args[:at], less(args[at], k), *args[at + 1 :], **options
        )

    return weaker


def _last_row(rows: Draw, k: float) -> Draw:
    """Return a hook whose last row, the noise of a step, is a k-th."""

    def weaker(part: Any, stage: Stage, values: Any, ctx: Any) -> Any:
        changed = rows(part, stage, values, ctx)
        if stage.kind == "example-gradients":
            changed[-1] /= k
        return changed

    return weaker


def _by_library(estimator: Draw, k: float) -> Draw:
    """Return what makes estimators for which interpret-core draws a k-th."""

    def weaker(protocol: Any, *args: Any) -> Any:
        made = estimator(protocol, *args)
        from interpret.utils._native import Native

        draw, fit = Native.generate_gaussian_random, made.fit

        def weak(native: Any, rng: Any, stddev: float, count: int) -> Any:
            return draw(native, rng, stddev / k, count)

        def less(*rows: Any) -> Any:
            with patch.object(Native, draw.__name__, weak):
                return fit(*rows)

        made.fit = less
        return made

    return weaker


_scale = _asked(0, lambda scale, k: scale / k)
#: Where noise is drawn, and what draws a k-th of it.
_DRAWS: tuple[tuple[Any, str, Callable[[Draw, float], Draw]], ...] = (
    (noise, "discrete_laplace", _scale),
    (noise, "truncated_laplace", _scale),
    (noise, "discrete_gaussian", _scale),
    (cut_points, "discrete_laplace_share", _scale),
    (dp_forest, "discrete_laplace_share", _scale),
    (dp_gbdt, "discrete_gaussian_share", _scale),
    (ebm.DPEBM, "estimator", _by_library),
    (cut_points, "discrete_laplace", _scale),
    (cut_points, "private_quantiles", _asked(4, lambda epsilon, k: epsilon * k)),
    (dp_forest, "permute_and_flip", _asked(1, lambda epsilon, k: epsilon * k)),
    (label_noise, "respond", _asked(2, lambda odds, k: odds_within(k * math.log(odds)))),
    (dp_sgd.DPSGD, "rows", _last_row),
)


@contextmanager
def weakened(k: float) -> Iterator[None]:
    """Let all mechanisms draw a k-th of their noise; stated, claimed and spent is all of it."""
    with ExitStack() as stack:
        for where, name, weaker in _DRAWS if k != 1 else ():
            stack.enter_context(patch.object(where, name, weaker(getattr(where, name), k)))
        yield


@dataclass(frozen=True)
class Cell:
    """One audit.

    `seconds`: Of CPU.
    """

    found: Audited
    seconds: float

    @property
    def refuted(self) -> bool:
        """Whether more was shown than was spent."""
        return refuted(self.found.claimed, self.found.spent, (self.found.found,))

    @property
    def too_little(self) -> bool:
        """Whether noisy sums are too near those of the rows."""
        return self.found.noise is not None and self.found.noise.too_little

    @property
    def epsilon(self) -> float:
        """What was shown."""
        return self.found.found.epsilon


def audited(protocol: str, defense: str, k: float, seed: int, fewer: int = 1) -> Cell:
    """Audit a mechanism that draws a k-th of its noise, in so many times fewer trainings."""
    made, by = (
        register.make("protocol", parse_one(protocol).parts[0]),
        make_defense(parse_one(defense)),
    )
    usual = (made.worst_case(by) or (made, made.canaries()))[1].runs
    begun = process_time()
    with weakened(k):
        found = audit(made, by, runs=max(usual // fewer, 1), seed=seed)
    return Cell(found, process_time() - begun)


def line(protocol: str, defense: str, seeds: int, repeats: int) -> list[str]:
    """Return what is shown of a mechanism at every share of its noise, and how often wrongly."""
    cells = {
        name: [audited(protocol, defense, k, seed) for seed in range(seeds)]
        for name, k in NOISE.items()
    }
    every = [cell for several in cells.values() for cell in several]
    honest = [audited(protocol, defense, 1, seeds + i, _FEWER) for i in range(repeats)]
    spent = [g.budget[1] for g in every[0].found.spent if g.budget]
    return [
        f"`{protocol}`" if defense == "none" else f"`{defense}`",
        f"{spent[-1]:.3g}",
        *map(_shown, cells.values()),
        f"{every[0].found.found.most:.1f}",
        f"{max(cell.seconds for cell in every):.1f}",
        f"{sum(cell.refuted for cell in honest)} of {repeats}",
        *(f"{sum(c.too_little for c in of)} of {len(of)}" for of in (cells["1/2"], honest)),
    ]


def _shown(cells: list[Cell]) -> str:
    """Write the mean of what was shown, in bold where every audit refutes."""
    text, times = f"{mean(cell.epsilon for cell in cells):.2f}", sum(c.refuted for c in cells)
    return f"**{text}**" if times == len(cells) else f"{text} ({times})" if times else text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.power")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--only", default="", help="mechanisms whose name has this in it")
    options = parser.parse_args()
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
    print(markdown(header, lines))


if __name__ == "__main__":
    main()
