"""A grid of texts as LaTeX and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

Groups = Sequence[tuple[str, int]]  # names of groups of columns, and how many columns each has

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    # A bracket that follows the end of a line would be read as its argument.
    "[": "{[}", "]": "{]}",
    "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "–": "--", "†": r"$^\dagger$", "²": "$^2$",
    "ε": r"$\varepsilon$", "ξ": r"$\xi$", "·": r"$\cdot$", "\n": " ", "\t": " ", "\r": " ",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Return a text as LaTeX prints it, whatever is in it."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(
    groups: Groups, head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a ``tabular``; the first group is of labels, the first line stands apart."""
    labels = groups[0][1]
    aligned = "l" * labels + "r" * (len(head) - labels)
    above, rules, at = [], [], 1
    for name, width in groups:
        above.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(name)}}}" if name else "")
        if not name:
            above += [""] * (width - 1)
        else:
            rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    rows = [" & ".join(map(escape_latex, line)) + r" \\" for line in lines]
    text = [
        r"% \usepackage{booktabs}",
        *(f"% {escape_latex(note)}" for note in notes),
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        " & ".join(above) + r" \\",
        " ".join(rules),
        " & ".join(map(escape_latex, head)) + r" \\",
        r"\midrule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(text) + "\n"


def markdown(
    groups: Groups, head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a table of one heading, the names of groups before those of their columns."""
    owners = [name for name, width in groups for _ in range(width)]
    titles = [
        f"{group}: {name}" if group else name for group, name in zip(owners, head, strict=True)
    ]
    labels = groups[0][1]
    rule = ["---"] * labels + ["---:"] * (len(head) - labels)
    table = [titles, rule, *lines]
    text = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in table]
    return "\n".join([*text, "", *notes]) + "\n"
