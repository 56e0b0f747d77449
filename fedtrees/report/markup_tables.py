"""Write a grid of texts as a LaTeX table or as a Markdown table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

_WIDEST = 31  # characters of a label in LaTeX; a longer label takes several lines
_TITLE = 46  # characters of a block's name that fit in one line of a column

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    # LaTeX would read a bracket after the end of a line as the argument of that line end.
    "[": "{[}", "]": "{]}",
    "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "–": "--", "²": "$^2$",
    "ε": r"$\varepsilon$", "ξ": r"$\xi$", "·": r"$\cdot$", "\n": " ", "\t": " ", "\r": " ",
    "†": r"$^\dagger$", "‡": r"$^\ddagger$",
}  # fmt: skip
_MARKS = {"†": r"\dagger", "‡": r"\ddagger"}


def escape_latex(text: str) -> str:
    """Return LaTeX code that prints exactly this text."""
    return "".join(_LATEX.get(character, character) for character in text)


@dataclass(frozen=True)
class TableCell:
    """A number, half the length of its interval and a mark, as texts. Each may be empty."""

    mean: str
    half: str = ""
    mark: str = ""

    def __str__(self) -> str:
        """Write the cell in one line, for example ``0.81 ± 0.02†``."""
        return self.mean + (f" ± {self.half}" if self.half else "") + self.mark


#: The cells of one line.
Line = Sequence[str | TableCell]


@dataclass(frozen=True)
class MarkupTable:
    """Cells with a header.

    Attributes
    ----------
    head : sequence of str
        Names of the columns.
    labels : int
        Number of leading columns that name a line.
    blocks : sequence of (str, sequence of lines)
        Lines by the name of their block.
    """

    head: Sequence[str]
    labels: int
    blocks: Sequence[tuple[str, Sequence[Line]]]


def latex(table: MarkupTable, notes: Sequence[str] = ()) -> str:
    """Return a ``tabular`` that fits in one column of a paper.

    Blocks are placed below one another, so that its width does not grow with their number. The
    notes follow below the table.
    """

    def titles(name: str) -> list[str]:
        if len(table.blocks) == 1:
            return []
        return name.split(" · ") if len(name) > _TITLE else [name]

    def rows(line: Line) -> Iterator[list[str]]:
        labels = [_broken(str(cell)) for cell in line[: table.labels]]
        for at in range(max(map(len, labels))):
            parts = [part[at] if at < len(part) else "" for part in labels]
            parts = [(r"\enspace " if at and part else "") + escape_latex(part) for part in parts]
            yield [*parts, *("" if at else _number(c) for c in line[table.labels :])]

    template = _environment().get_template("table.tex.j2")
    return template.render(table=table, wide=len(table.head), notes=notes, titles=titles, rows=rows)


@cache
def _environment() -> jinja2.Environment:
    """Return a template engine whose marks do not occur in LaTeX."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("fedtrees.report", "page_files"),
        autoescape=False,  # every text is escaped for LaTeX by the filter `tex`
        block_start_string="<%", block_end_string="%>",
        variable_start_string="<<", variable_end_string=">>",
        comment_start_string="<#", comment_end_string="#>",
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    env.filters["tex"] = escape_latex
    return env


def _number(cell: str | TableCell) -> str:
    """Return a number with half the length of its interval as a subscript.

    For example, ``0.81 ± 0.02†`` becomes 0.81 with a subscript ±.02 and a superscript †.
    """
    if isinstance(cell, str) or not cell.half:
        return escape_latex(str(cell))
    marks = "".join(_MARKS[mark] for mark in cell.mark)
    mark = f"$^{{{marks}}}$" if marks else ""
    return rf"{escape_latex(cell.mean)}$_{{\pm{cell.half.lstrip('0')}}}${mark}"


def _broken(label: str) -> list[str]:
    """Break a label that is too wide into lines, after its plus signs."""
    lines = [""]
    for part in label.replace("+", "+\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDEST:
            lines.append("")
        lines[-1] += part
    return lines


def markdown(table: MarkupTable, notes: Sequence[str] = ()) -> str:
    """Return a Markdown table. If there are several blocks, its first column names the block."""
    several = len(table.blocks) > 1
    head = ["dataset", *table.head] if several else list(table.head)
    rule = ["---"] * (table.labels + several) + ["---:"] * (len(table.head) - table.labels)
    lines = [[name, *line] if several else line for name, lines in table.blocks for line in lines]
    every = [head, rule, *lines]
    text = ["| " + " | ".join(_in_one_line(str(c)) for c in line) + " |" for line in every]
    return "\n".join([*text, "", *(" ".join(note.splitlines()) for note in notes)]) + "\n"


def _in_one_line(cell: str) -> str:
    """Return a text that can be a cell of a Markdown table: a line break would end the table."""
    return " ".join(cell.splitlines()).replace("|", r"\|")
