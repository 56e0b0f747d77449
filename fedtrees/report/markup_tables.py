"""Write a grid of texts as a LaTeX table or as a Markdown table."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDEST = 31  # characters of a label in LaTeX; a longer label takes several lines
_TITLE = 46  # characters of a block's name that fit in one line of a column

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    # LaTeX would read a bracket after the end of a line as the argument of that line end.
    "[": "{[}", "]": "{]}",
    "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "–": "--", "†": r"$^\dagger$", "²": "$^2$",
    "ε": r"$\varepsilon$", "ξ": r"$\xi$", "·": r"$\cdot$", "\n": " ", "\t": " ", "\r": " ",
}  # fmt: skip


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
class TextTable:
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


def latex(table: TextTable, notes: Sequence[str] = ()) -> str:
    """Return a ``tabular`` that fits in one column of a paper.

    Blocks are placed below one another, so that its width does not grow with their number. The
    notes follow below the table.
    """
    wide = len(table.head)
    body: list[str] = []
    for name, lines in table.blocks:
        body.append(r"\midrule")
        if len(table.blocks) > 1:
            for part in name.split(" · ") if len(name) > _TITLE else [name]:
                body.append(
                    rf"\multicolumn{{{wide}}}{{@{{}}l}}{{\emph{{{escape_latex(part)}}}}} \\"
                )
        for line in lines:
            parts = [_broken(str(cell)) for cell in line[: table.labels]]
            for at in range(max(map(len, parts))):
                cells = [part[at] if at < len(part) else "" for part in parts]
                cells = [(r"\enspace " if at and c else "") + escape_latex(c) for c in cells]
                cells += [_number(c) if not at else "" for c in line[table.labels :]]
                body.append(" & ".join(cells) + r" \\")
    text = [
        r"% \usepackage{booktabs}",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{2pt}%",
        rf"\begin{{tabular}}{{@{{}}{'l' * table.labels + 'r' * (wide - table.labels)}@{{}}}}",
        r"\toprule",
        " & ".join(map(escape_latex, table.head)) + r" \\",
        *body,
        r"\bottomrule",
        *(_below(note, wide) for note in notes),
        r"\end{tabular}",
        r"\endgroup",
    ]
    return "\n".join(text) + "\n"


def _below(note: str, wide: int) -> str:
    """Return a table line for a note that is as wide as the text."""
    text = escape_latex(note)
    return rf"\multicolumn{{{wide}}}{{@{{}}p{{\linewidth}}@{{}}}}{{\scriptsize {text}}} \\"


def _number(cell: str | TableCell) -> str:
    """Return a number with half the length of its interval as a subscript.

    For example, ``0.81 ± 0.02†`` becomes 0.81 with a subscript ±.02 and a superscript †.
    """
    if isinstance(cell, str) or not cell.half:
        return escape_latex(str(cell))
    mark = r"$^{\dagger}$" if cell.mark else ""
    return rf"{escape_latex(cell.mean)}$_{{\pm{cell.half.lstrip('0')}}}${mark}"


def _broken(label: str) -> list[str]:
    """Break a label that is too wide into lines, after its plus signs."""
    lines = [""]
    for part in label.replace("+", "+\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDEST:
            lines.append("")
        lines[-1] += part
    return lines


def markdown(table: TextTable, notes: Sequence[str] = ()) -> str:
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
