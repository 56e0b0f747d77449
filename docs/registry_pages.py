"""Write one page for each registered attack, defense and protocol.

`docs/conf.py` calls `write_pages` before the site is built. The pages contain the documentation of
the class, the parameters, the adversaries and messages (from ``docs/reference/exposure.md``) and
the results of the stored submissions. They are not in the repository, because they follow from it.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pandas as pd

from fedtrees.core.registry import register

ROOT = Path(__file__).parents[1]
KINDS = {"attack": "Attacks", "defense": "Defenses", "protocol": "Protocols"}
INTRODUCTIONS = {
    "attack": "Every attack of fedtrees, with its parameters, the views to which it applies, and "
    "what it achieved in the stored submissions. [Who reads which message](../exposure.md) shows "
    "the same by protocol.",
    "defense": "Every defense, with its parameters and its documentation. "
    "[Defenses](../defenses.md) compares them, and [choose a defense](../../how-to/choose.md) "
    "helps you to select one.",
    "protocol": "Every protocol, with its parameters, its parties and the attacks that apply to "
    "it.",
}


def shown_measures() -> dict[str, str]:
    """Return the keys and names of the measures that a verdict considers."""
    metrics = [register.get("metric", name) for name in register.names("metric")]
    measures = [m for metric in metrics for m in metric.measures]
    return {m.key: f"{m.name} ({m.unit})" for m in measures if m.severity < 1000}


def read_table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of the page about exposure."""
    page = (ROOT / "docs/reference/exposure.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(text: str) -> list[str]:
    """Return the names in backticks."""
    return re.findall(r"`([^`]+)`", text)


def read_results() -> pd.DataFrame:
    """Return the scores of all attacks on undefended runs of the stored submissions, by setting."""
    frames = []
    for folder in sorted((ROOT / "benchmarks/leaderboard").iterdir()):
        if (folder / "rows.csv").exists():
            frames.append(pd.read_csv(folder / "rows.csv", low_memory=False))
    rows = pd.concat(frames)
    rows = rows[(rows.stage == "attack") & (rows.status == "ok") & (rows.defense == "none")]
    measures = shown_measures()
    rows = rows[rows.metric.isin(list(measures)) & rows.part.isna() & rows.blind.notna()]
    keys = ["attack", "dataset", "protocol", "protocol_params", "threat", "metric"]
    scores = rows.groupby(keys, dropna=False)[["value", "blind", "advantage"]].agg(
        {"value": ["mean", "std", "size"], "blind": "mean", "advantage": "mean"}
    )
    scores.columns = ["score", "deviation", "seeds", "blind", "advantage"]
    return scores.reset_index().assign(measure=lambda frame: frame.metric.map(measures))


def parameters_of(cls: type) -> list[tuple[str, str]]:
    """Return the name and the default of every parameter that a user can set in brackets."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return []
    return [
        (p.name, "required" if p.default is p.empty else f"`{p.default}`")
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not p.name.startswith("_")
    ]


def markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def use_of(kind: str, name: str, cls: type) -> str:
    """Return a command that uses the object."""
    missing = [p for p, default in parameters_of(cls) if default == "required"]
    shown = f"{name}[{','.join(f'{p}=...' for p in missing)}]" if missing else name
    option = {"attack": "-a", "defense": "-d", "protocol": "-p"}[kind]
    return f'```sh\nfedtrees bench {option} "{shown}"\n```\n'


def page_of(kind: str, name: str, results: pd.DataFrame) -> str:
    """Return the page of one registered class, in Markdown."""
    cls = register.get(kind, name)
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    parts = [f"# {name}\n", f"{summary}\n", use_of(kind, name, cls)]
    parameters = parameters_of(cls)
    if parameters:
        rows = [[f"`{p}`", default] for p, default in parameters]
        parts += ["## Parameters\n", markdown_table(["Name", "Default"], rows)]
    if kind == "attack":
        parts += attack_sections(name, cls, results)
    elif kind == "protocol":
        parts += protocol_sections(name)
    parts += [
        "## Documentation\n",
        f"```{{eval-rst}}\n.. autoclass:: {cls.__module__}.{cls.__qualname__}\n"
        "   :no-index:\n```\n",
    ]
    return "\n".join(parts)


def attack_sections(name: str, cls: type, results: pd.DataFrame) -> list[str]:
    """Return the sections about views, messages and results of an attack."""
    parts = []
    rows = [
        [cells[0], cells[1]]
        for cells in read_table("Which attacks apply")
        if name in names_in(cells[2])
    ]
    if rows:
        parts += [
            "## Views to which it applies\n",
            markdown_table(["Protocols without a defense", "Adversaries"], rows),
        ]
    threats = getattr(cls, "threats", ())
    if threats:
        texts = " or ".join(f"`--threat {threat}`" for threat in threats)
        parts += [f"The attack needs an adversary with more knowledge or power: {texts}.\n"]
    rows = [
        [cells[0], cells[1], cells[2]]
        for cells in read_table("Who reads what")
        if name in names_in(cells[3])
    ]
    if rows:
        parts += [
            "## Messages that it uses\n",
            "The guess changes if one of these messages is removed.\n",
            markdown_table(["Protocols", "Adversary", "Messages"], rows),
        ]
    strongest = results[results.attack == name].sort_values("advantage", ascending=False)
    strongest = strongest.groupby("metric", sort=False).head(2)
    if len(strongest):
        rows = [
            [
                f"`{r.protocol}`",
                r.dataset,
                r.threat,
                r.measure,
                f"{r.score:.3g}",
                f"{r.deviation:.2g}" if pd.notna(r.deviation) else "",
                f"{r.blind:.3g}",
                str(r.seeds),
            ]
            for r in strongest.itertuples()
        ]
        heads = ["Protocol", "Table", "Adversary", "Measure", "Score"]
        heads += ["Deviation", "Blind", "Seeds"]
        parts += [
            "## Results without a defense\n",
            "The two largest advantages for each measure: mean and standard deviation over the "
            "seeds, and the blind baseline. The runs are the "
            '<a href="../../../leaderboard.html">stored submissions</a>.\n',
            markdown_table(heads, rows),
        ]
    elif getattr(cls, "is_reference", False):
        parts += ["The attack is contained for comparison, and does not count for a verdict.\n"]
    return parts


def protocol_sections(name: str) -> list[str]:
    """Return the sections about the attacks on a protocol and its messages."""
    rows = [
        [cells[1], cells[2]]
        for cells in read_table("Which attacks apply")
        if name in names_in(cells[0])
    ]
    parts = ["## Attacks that apply\n", markdown_table(["Adversaries", "Attacks"], rows)]
    rows = [cells[1:] for cells in read_table("Who reads what") if name in names_in(cells[0])]
    if rows:
        heads = ["Adversary", "Messages", "Used by"]
        parts += ["## Messages that reveal data\n", markdown_table(heads, rows)]
    return parts


def write_pages() -> None:
    """Write the pages of all registered attacks, defenses and protocols, and their indexes."""
    results = read_results()
    for kind, title in KINDS.items():
        folder = ROOT / "docs/reference" / title.lower()
        folder.mkdir(exist_ok=True)
        names = [name for name in register.names(kind) if name != "none"]
        for name in names:
            write_changed(folder / f"{name}.md", page_of(kind, name, results))
        entries = "\n".join(names)
        index = f"# {title} one by one\n\n{INTRODUCTIONS[kind]}\n\n"
        write_changed(
            folder / "index.md", f"{index}```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
        )


def write_changed(path: Path, text: str) -> None:
    """Write a file if its content differs, so that an unchanged page is not built again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
