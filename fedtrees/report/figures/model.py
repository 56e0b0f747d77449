"""Describe the figure of a frontier independently of the library that draws it.

`FigurePanel` computes the ranges of the axes, the vertical lines, the groups of points at one place
and the labels of a `fedtrees.report.frontier.Frontier`. `interactive` draws it with plotly, and
`static` with matplotlib. `inline_svg` draws the frontiers of the report, whose axes are the change
in utility and the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.guarantees import Kind
from fedtrees.report.results import UNDEFENDED, ordered

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
FRONT, BELOW_BLIND = "#d5dae1", "#f1f5f3"  # the line of the front, the area below a blind guess
RING = 0.62  # difference in size between two rings around a marker, as a share of the marker
# As a share of an axis. It is about half a marker in the smallest figure.
_ONE_PLACE = 0.018
Range = tuple[float, float]


def palette(families: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Assign a colour and a dash pattern to each defense family.

    The same set of families gives the same assignment.
    """
    out = {UNDEFENDED: (INK, "solid")}
    for i, name in enumerate(f for f in ordered(set(families)) if f != UNDEFENDED):
        out[name] = (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
    return out


def padded(values: Iterable[float]) -> tuple[float, float]:
    """Return the range of the finite values with a margin, (0, 1) if there are none."""
    finite_values = [v for v in values if math.isfinite(v)]
    if not finite_values:
        return 0.0, 1.0
    low, high = min(finite_values), max(finite_values)
    pad = 0.08 * (high - low) or 0.02
    return low - pad, high + pad


def advantage_limits(panels: Sequence[Frontier]) -> Range:
    """Return one range of the advantage axis for several panels. Zero is always inside."""
    points = [p for f in panels for p in f.drawn]
    return padded([*_values(points, "advantage"), 0.0, 0.05])


def _values(points: Sequence[Point], name: str) -> list[float]:
    """Return the means, the ends of the intervals and the single seeds of one coordinate."""
    estimates = [getattr(p, name) for p in points]
    seeds = [
        v
        for p in points
        for v in (p.utilities.values() if name == "utility" else p.leakage.advantages)
    ]
    return [v for e in estimates for v in (e.mean, e.low, e.high)] + seeds


@dataclass(frozen=True)
class FigurePanel:
    """One frontier with everything that its figure shows, in units of the data.

    Attributes
    ----------
    frontier : Frontier
        The points, the front, the lines that join points, and the references.
    colours : mapping of str to (str, str)
        Colour and dash pattern of each family of defenses, equal in all panels (`palette`).
    advantages : tuple of float
        Range of the advantage axis, equal in panels that are compared.
    """

    frontier: Frontier
    colours: Mapping[str, tuple[str, str]]
    advantages: Range

    @cached_property
    def utilities(self) -> Range:
        """The range of the utility axis.

        A reference is included if it is near, or always if `Frontier.every_reference` is set.
        """
        data = self.frontier
        low, high = padded(_values(data.drawn, "utility"))
        for _, e in data.references:
            reached = low - 0.35 * (high - low) < e.mean < high + 0.35 * (high - low)
            if e.known and (reached or data.every_reference):
                pad = 0.05 * (high - low)
                low, high = min(low, e.mean - pad), max(high, e.mean + pad)
        # On such a wide axis, points at the upper end need additional space.
        if data.every_reference:
            high += 0.05 * (high - low)
        return low, high

    @property
    def blind(self) -> str:
        """Name of the line at advantage zero.

        It is the blind baseline, with the name of the guess if there is only one. If the adversary
        has no local rows, it is the better of both baselines.
        """
        if any(p.population.known for p in self.frontier.points):
            return "better baseline"
        names = self.frontier.blind
        return f"blind ({names[0]})" if len(names) == 1 else "blind"

    @cached_property
    def vertical_lines(self) -> list[tuple[str, float]]:
        """References and the undefended run by name, from left to right."""
        low, high = self.utilities
        references = self.frontier.references
        visible = [(name, e.mean) for name, e in references if e.known and low <= e.mean <= high]
        undefended = self.frontier.undefended
        base = [("undefended", undefended.mean)] if undefended.known else []
        return sorted([*visible, *base], key=lambda line: line[1])

    @property
    def off_axis(self) -> list[tuple[str, float]]:
        """References beyond the utility axis."""
        low, high = self.utilities
        references = self.frontier.references
        return [(name, e.mean) for name, e in references if e.known and not low <= e.mean <= high]

    @property
    def front(self) -> list[Point]:
        """The non-dominated points, by utility."""
        return [p for p in map(self.frontier.point, self.frontier.front) if p]

    @property
    def lines(self) -> list[list[Point]]:
        """The points of each swept defense, in the order of the parameter."""
        return [[p for p in map(self.frontier.point, line) if p] for line in self.frontier.lines]

    @cached_property
    def groups(self) -> list[list[Point]]:
        """The points that lie at one place, within half a marker.

        Without the groups, the uppermost point would hide the remaining ones.
        """
        low, high = self.utilities
        groups: list[list[Point]] = []
        for p in self.frontier.drawn:
            for group in groups:
                dx = abs(group[0].utility.mean - p.utility.mean) / (high - low)
                dy = abs(group[0].advantage.mean - p.advantage.mean)
                if dx < _ONE_PLACE and dy / (self.advantages[1] - self.advantages[0]) < _ONE_PLACE:
                    group.append(p)
                    break
            else:
                groups.append([p])
        return groups

    @cached_property
    def rings(self) -> dict[str, int]:
        """The number of each point's ring, by defense: one ring per family at one place.

        Ring 0 is a marker.
        """
        rings: dict[str, int] = {}
        for group in self.groups:
            families = [*dict.fromkeys(p.family for p in group)]
            rings |= {p.defense: families.index(p.family) for p in group}
        return rings

    def label(self, p: Point) -> str:
        """Return the text at the undefended point and at the ends of a sweep, "" elsewhere."""
        if p.defense == UNDEFENDED:
            return "undefended"
        if p.defense in {line[i] for line in self.frontier.lines for i in (0, -1)}:
            name = {"epsilon": "ε", "xi": "ξ"}.get(p.budget.name, p.budget.name)
            return f"{name}={p.budget.value:g}"
        return ""

    def is_crowded_above(self, p: Point) -> bool:
        """Return whether another point lies just above, where it would overlap with a label."""
        low, high = self.utilities
        bottom, top = advantage_limits([self.frontier])
        return any(
            abs(o.utility.mean - p.utility.mean) < 0.08 * (high - low)
            and 0 < o.advantage.mean - p.advantage.mean < 0.2 * (top - bottom)
            for o in self.frontier.drawn
        )

    def fill(self, p: Point) -> str:
        """Return the fill of a marker: white if its advantage is only a lower bound of the leak."""
        return "white" if p.is_lower_bound else self.colours[p.family][0]


def panels_of(
    frontiers: Sequence[Frontier], colours: Mapping[str, tuple[str, str]] | None = None
) -> list[FigurePanel]:
    """Return the panels of a figure. Panels of one setting share the advantage axis."""
    colours = colours or palette(p.family for f in frontiers for p in f.points)
    return [
        FigurePanel(
            data,
            colours,
            advantage_limits([f for f in frontiers if f.panel.setting == data.panel.setting]),
        )
        for data in frontiers
    ]
