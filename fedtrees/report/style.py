"""Define colours, marker shapes and number formats, shared by the web and the paper figures."""

import math
from collections.abc import Iterable

from fedtrees.report.guarantees import Kind
from fedtrees.report.results import UNDEFENDED, ordered
from fedtrees.report.statistics import Estimate

INK, MUTED, RULE = "#1b1f24", "#5b6470", "#c9ced6"
# Okabe and Ito (2008) without black (undefended) and yellow (too pale on white), then four colours
# of Tol's muted scheme. Readers with common colour-vision deficiencies can distinguish them.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00", "#56B4E9", "#882255", "#44AA99",
    "#999933", "#332288",
)  # fmt: skip
DASHES = ("solid", "dash", "dot")  # for families beyond the number of colours

# The shape shows the kind of the claim: (plotly symbol, matplotlib marker).
SHAPES: dict[Kind, tuple[str, str]] = {
    "proved": ("circle", "o"),
    "void": ("x", "X"),
    "computational": ("square", "s"),
    "structural": ("diamond", "D"),
    "none": ("triangle-up", "^"),
    "unknown": ("pentagon", "p"),
}


def palette(families: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Assign a colour and a dash pattern to each defense family.

    The same set of families gives the same assignment.
    """
    out = {UNDEFENDED: (INK, "solid")}
    for i, name in enumerate(f for f in ordered(set(families)) if f != UNDEFENDED):
        out[name] = (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
    return out


def number(value: float, digits: int = 3, signed: bool = False) -> str:
    """Format a number with fixed decimals and a true minus sign. "–" if it is not finite."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    # A value that rounds to zero has no sign.
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", "\N{MINUS SIGN}")


def scored(score: float, blind: float, population: float) -> str:
    """Format a score with its baselines.

    The population baseline is NaN for adversaries with local rows, and is then omitted.
    """
    population_text = f", population {number(population)}" if math.isfinite(population) else ""
    return f"score {number(score)}, blind {number(blind)}{population_text}"


def interval(e: Estimate, digits: int = 3, signed: bool = False) -> str:
    """Format a mean with its interval as ``mean [low, high]``."""
    mean = number(e.mean, digits, signed)
    if not math.isfinite(e.low):
        return mean
    return f"{mean} [{number(e.low, digits, signed)}, {number(e.high, digits, signed)}]"


def bytes_text(value: float) -> str:
    """Format bytes in decimal units with three significant digits."""
    if not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def seconds_text(value: float) -> str:
    """Format seconds with three significant digits."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def padded(values: Iterable[float]) -> tuple[float, float]:
    """Return the range of the finite values with a margin, (0, 1) if there are none."""
    finite_values = [v for v in values if math.isfinite(v)]
    if not finite_values:
        return 0.0, 1.0
    low, high = min(finite_values), max(finite_values)
    pad = 0.08 * (high - low) or 0.02
    return low - pad, high + pad
