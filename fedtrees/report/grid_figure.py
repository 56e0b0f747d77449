"""Draw grids of advantages as interactive heatmaps."""

import math

from fedtrees.core.errors import many
from fedtrees.report import style
from fedtrees.report.interactive_figure import Drawing, axis, esc, layout, note
from fedtrees.report.leaks import Cell, Grid, matrix

_ROW = 30  # height of a row in pixels


def draw_heatmap(grid: Grid, limit: float) -> Drawing:
    """Draw a grid of advantages: white equals the better baseline, orange is a leak.

    Blue is worse than that baseline. It is a failure of the attack and no evidence of safety.
    `limit` is the advantage at the ends of the colour scale, which the page shows.
    """
    columns = [esc(c) for c in grid.columns]
    rows = [esc(r) for r in grid.rows]
    fig = Drawing(layout=layout())
    fig.data.append({
        "type": "heatmap", "z": matrix(grid).tolist(), "x": list(range(len(columns))),
        "y": list(range(len(rows))), "zmin": -limit, "zmax": limit, "xgap": 2, "ygap": 2,
        "colorscale": [list(stop) for stop in style.DIVERGING],
        "customdata": [[_cell_hover(r, c, cell) for c, cell in zip(columns, line, strict=True)]
                       for r, line in zip(rows, grid.cells, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>", "hoverongaps": True, "showscale": False,
    })  # fmt: skip
    names = [esc(_break_name(c)).replace("\n", "<br>") for c in grid.columns]
    bare = {"showgrid": False, "showline": False, "ticks": ""}
    top = 16 + 15 * max([n.count("<br>") + 1 for n in names], default=1)
    fig.layout |= {
        "xaxis": axis(tickvals=list(range(len(names))), ticktext=names, side="top", tickangle=0,
                      tickfont={"size": 11}, **bare),
        "yaxis": axis(tickvals=list(range(len(rows))), ticktext=rows, autorange="reversed",
                      **bare),
        "annotations": [
            note(cell_text(cell), x=j, y=i, color=cell_ink(cell, limit))
            for i, line in enumerate(grid.cells)
            for j, cell in enumerate(line)
        ],
        "height": top + 24 + max(_ROW * len(rows), _ROW),
        "margin": {"l": 56, "t": top, "b": 16, "r": 24},
    }  # fmt: skip
    return fig


def _break_name(spec: str) -> str:
    """Break the name of a defense between its parts and before its parameters."""
    return spec.replace("+", "+\n").replace("[", "\n[")


def cell_text(cell: Cell) -> str:
    """Return the text in a heatmap cell: a number, with a star if an attack failed, or a word."""
    if cell.state == "ok":
        return style.number(cell.advantage.mean, 2) + "*" * cell.partial
    words = {"skipped": "none", "": "", "undefined": "undef.", "no-claim": "no claim"}
    return words.get(cell.state, esc(cell.state))


def cell_ink(cell: Cell, limit: float) -> str:
    """Return a text colour that is legible on the colour of the cell."""
    mean = cell.advantage.mean
    if math.isnan(mean):
        return style.MUTED
    # Both ends of the colour scale are dark.
    return "white" if mean / limit > 0.72 or mean / limit < -0.75 else style.INK


def _cell_hover(row: str, column: str, cell: Cell) -> str:
    lines = [f"<b>{column}</b>", row]
    if cell.state == "ok":
        lines.append(f"advantage {style.interval(cell.advantage, signed=True)}")
        lines.append(style.scored(cell.score, cell.blind, cell.population))
        lines.append(many(cell.advantage.n, "seed"))
        if cell.failed:
            lines.append("the attack did worse than a blind guess; nothing is shown")
    else:
        lines.append(esc(cell.state or "not part of the run"))
    return "<br>".join(lines + ([esc(cell.note)] if cell.note else []))
