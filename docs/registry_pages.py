"""Write one page for each registered attack, defense and protocol.

`docs/conf.py` calls `write_pages` before the site is built. The pages contain the documentation of
the class, the parameters, the adversaries and messages (from ``docs/reference/exposure.md`` and
``docs/studies/evidence.csv``) and stored results. The page of an attack also contains the
hand-written texts of ``docs/attack_notes.toml``. The pages are not in the repository, because they
follow from it.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees.core.registry import register

ROOT = Path(__file__).parents[1]
KINDS = {"attack": "Attacks", "defense": "Defenses", "protocol": "Protocols"}
INTRODUCTIONS = {
    "attack": "Every attack of fedtrees. Each page states the threat model, the messages that the "
    "attack reads (the evidence), the algorithm, its source, what it achieves and its limits. "
    "[Who reads which message](../exposure.md) shows the same by protocol.",
    "defense": "Every defense, with its parameters and its documentation. "
    "[Defenses](../defenses.md) compares them, and [choose a defense](../../how-to/choose.md) "
    "helps you to select one.",
    "protocol": "Every protocol, with its parameters, its parties and the attacks that apply to "
    "it.",
}

#: Values of required parameters in the commands of the pages.
EXAMPLES = {"epsilon": "1", "scale": "0.01", "share": "0.1", "step": "0.1", "xi": "0.3"}
_QUERIES = '-p secureboost --threat "active[queries=1000]"'
#: Settings that a defense fits, if it does not fit `fedtree-hist` and the default table, and
#: settings that a protocol needs in addition. The default table declares no ranges of columns.
SETTINGS = {
    **dict.fromkeys(("dp-ebm", "dp-forest"), "--data digits"),
    "dp-gbdt": '-d "dp-grid-cuts[epsilon=1]"',
    **dict.fromkeys(("answer-noise", "answer-rounding", "hide-leaf-ids", "query-limit"), _QUERIES),
    **dict.fromkeys(
        ("grafting-ldp", "id-lmid", "lp-1st", "lp-mst", "reduced-leakage"), "-p secureboost"
    ),
    **dict.fromkeys(("decrypted-precision", "dp-gd"), "-p vertical-regression"),
    **dict.fromkeys(("mask-sum-hessian", "min-leaf"), "-p flower-bagging"),
    **dict.fromkeys(("dp-sgd", "gradient-noise", "gradient-rounding", "top-k"), "-p fedsgd-mlp"),
    "forced-bins": "-p lightgbm-data",
    "public-cuts": "-p fedtree-hist --data digits",
}


def shown_measures() -> dict[str, str]:
    """Return the keys and names of the measures that a verdict considers."""
    metrics = [register.get("metric", name) for name in register.names("metric")]
    measures = [m for metric in metrics for m in metric.measures]
    return {m.key: f"{m.name} ({m.unit})" for m in measures if m.severity < 1000}


@cache
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
    """Return a command that uses the object with a protocol and an adversary that fit it."""
    missing = [p for p, default in parameters_of(cls) if default == "required"]
    examples = ",".join(f"{p}={EXAMPLES[p]}" for p in missing)
    shown = f'"{name}[{examples}]"' if missing else name
    if kind == "attack":
        if command := attack_notes(name).get("command"):
            return f"```sh\n{command}\n```\n"
        applies = [row for row in read_table("Which attacks apply") if name in names_in(row[2])]
        preferred = [row for row in applies if "fedtree-hist" in names_in(row[0])]
        if applies:
            row = preferred[-1] if preferred else applies[0]
            protocol = "fedtree-hist" if preferred else names_in(row[0])[0]
            threat = row[1].split(", ")[0]
        else:
            protocol, threat = "fedtree-hist", f'"{cls.threats[0]}"'
        return f"```sh\nfedtrees bench -p {protocol} -a {shown} --threat {threat}\n```\n"
    if kind == "defense":
        setting = SETTINGS.get(name, "-p fedtree-hist")
        return f"```sh\nfedtrees bench {setting} -d {shown}\n```\n"
    more = f" {SETTINGS[name]}" if name in SETTINGS else ""
    return f"```sh\nfedtrees bench -p {shown}{more}\n```\n"


def page_of(kind: str, name: str, results: pd.DataFrame) -> str:
    """Return the page of one registered class, in Markdown."""
    cls = register.get(kind, name)
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    parts = [f"# {name}\n", f"{summary}\n", use_of(kind, name, cls)]
    if kind == "attack":
        parts += attack_sections(name, cls, results)
    elif kind == "defense":
        parts += claim_sections(name)
    parameters = parameters_of(cls)
    if parameters:
        rows = [[f"`{p}`", default] for p, default in parameters]
        parts += ["## Parameters\n", markdown_table(["Name", "Default"], rows)]
    if kind == "protocol":
        parts += protocol_sections(name)
    if kind != "attack":
        parts += source_section(name, cls)
    parts += [
        "## Documentation\n",
        f"```{{eval-rst}}\n.. autoclass:: {cls.__module__}.{cls.__qualname__}\n"
        "   :no-index:\n```\n",
    ]
    return "\n".join(parts)


@cache
def read_notes() -> dict[str, Any]:
    """Return the hand-written texts about attacks, by the name of the attack."""
    with (ROOT / "docs/attack_notes.toml").open("rb") as file:
        return tomllib.load(file)


def attack_notes(name: str) -> dict[str, Any]:
    """Return the hand-written texts about one attack, empty if there are none."""
    return dict(read_notes().get(name, {}))


def source_section(name: str, cls: type) -> list[str]:
    """Return the section with the works that a component implements, and the place of its code."""
    page = (ROOT / "docs/references.md").read_text(encoding="utf-8")
    with_paper, _, without_paper = page.partition("## Components without a paper")
    lines = []
    for line in with_paper.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and name in base_names_in(cells[1]):
            lines.append(f"- {cells[0]}. BibTeX: {cells[2]}")
    for line in without_paper.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and name in base_names_in(cells[0]):
            lines.append(f"- No paper of its own. Origin: {cells[1].removesuffix('.')}.")
    code = f"The code is the class `{cls.__qualname__}` in `{cls.__module__}`.\n"
    return ["## Source\n", "\n".join(lines) + "\n", code]


def base_names_in(text: str) -> set[str]:
    """Return the names in backticks, without parameters.

    For example, the name in ```laplace-hist[epsilon=]``` is ``laplace-hist``.
    """
    return {name.partition("[")[0] for name in names_in(text)}


def claim_sections(name: str) -> list[str]:
    """Return the sections about the effect and the claim of a defense."""
    page = (ROOT / "docs/reference/defenses.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3 and name in base_names_in(cells[0]):
            effect, claim = (re.sub(r"\]\((?=\.\./|[\w#])", "](../", c) for c in cells[1:])
            kinds = "[kinds of claims](../defenses.md#kinds-of-claims)"
            return [
                "## What it does\n",
                effect + "\n",
                "## Claim\n",
                f"{claim[:1].upper()}{claim[1:]} ({kinds}).\n",
            ]
    return []


@cache
def read_evidence_table() -> pd.DataFrame:
    """Return the lines of the study of message fields that refer to received messages."""
    lines = pd.read_csv(ROOT / "docs/studies/evidence.csv", keep_default_na=False)
    return lines[lines.direction == "received"]


def read_evidence(name: str) -> list[list[str]]:
    """Return protocols, adversary and messages of each group of messages that an attack reads."""
    lines = read_evidence_table()
    messages: dict[tuple[str, str], set[str]] = {}
    for line in lines[[name in readers.split() for readers in lines.read_by]].itertuples():
        messages.setdefault((line.protocol, line.adversary), set()).add(line.message)
    for cells in read_table("Who reads what"):
        if name in names_in(cells[3]):
            for protocol in names_in(cells[0]):
                for adversary in cells[1].split(", "):
                    sent = messages.setdefault((protocol, adversary), set())
                    sent.update(names_in(cells[2]))
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (protocol, adversary), types in sorted(messages.items()):
        groups.setdefault((adversary, tuple(sorted(types))), []).append(protocol)
    return [
        [", ".join(f"`{p}`" for p in protocols), adversary, ", ".join(f"`{t}`" for t in types)]
        for (adversary, types), protocols in groups.items()
    ]


def attack_sections(name: str, cls: type, results: pd.DataFrame) -> list[str]:
    """Return the sections of an attack, from its threat model to its limits."""
    notes = attack_notes(name)
    parts = ["## Threat model\n", notes["threat"] + "\n"]
    applies: dict[str, list[str]] = {}
    for cells in read_table("Which attacks apply"):
        if name in names_in(cells[2]):
            for adversary in cells[1].split(", "):
                applies.setdefault(adversary, []).extend(names_in(cells[0]))
    if applies:
        rows = [
            [adversary, ", ".join(f"`{p}`" for p in sorted(protocols))]
            for adversary, protocols in sorted(applies.items())
        ]
        parts += [markdown_table(["Adversary", "Protocols without a defense"], rows)]
    threats = getattr(cls, "threats", ())
    if threats:
        texts = " or ".join(f"`--threat {threat}`" for threat in threats)
        parts += [f"The attack needs an adversary with more knowledge or power: {texts}.\n"]
    parts += ["## Evidence\n", notes["evidence"] + "\n"]
    rows = read_evidence(name)
    if rows:
        parts += [
            "The guess changes if one of these messages is changed or removed "
            "([how this was tested](../../studies/evidence.md)).\n",
            markdown_table(["Protocols", "Adversary", "Messages"], rows),
        ]
    steps = [f"{number}. {step}" for number, step in enumerate(notes["algorithm"], 1)]
    parts += ["## Algorithm\n", "\n".join(steps) + "\n"]
    parts += source_section(name, cls)
    parts += ["## What it achieves\n", notes["achieves"] + "\n"]
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
            "The two largest advantages for each measure in the "
            '<a href="../../leaderboard.html">stored submissions</a>, without a defense: mean '
            "and standard deviation over the seeds, and the blind baseline.\n",
            markdown_table(heads, rows),
        ]
    elif getattr(cls, "is_reference", False):
        parts += ["The attack is contained for comparison, and does not count for a verdict.\n"]
    return [*parts, "## Limits\n", notes["limits"] + "\n"]


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
