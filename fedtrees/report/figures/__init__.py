"""Draw frontiers: as interactive HTML, as static figures for a paper, and inside the report.

`model` describes a figure, `labels` places its labels, and `interactive`, `static` and `inline_svg`
draw it. `plot` writes the figures of a run to a file.
"""
