"""Write the findings of a run as one HTML page that needs no network.

`write_page` writes the report of a run. This module computes the texts, and `page_tables` the
figures and tables. The template is ``report.html.j2``.

The module also renders all other HTML pages from templates with embedded style and script. The
content security policy of a page allows exactly the scripts that this package wrote into it, each
by its SHA-256 hash (Content Security Policy Level 3, section 2.3.1). A browser therefore runs no
other script, even if text of a table or of a submission reached the page without escaping.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import jinja2
from markupsafe import Markup

from fedtrees.core.errors import listed, many
from fedtrees.core.files import write_text
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_one
from fedtrees.report import wording
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.findings import (
    DefenseResult,
    RunAnalysis,
    SettingFindings,
    analyze_run,
)
from fedtrees.report.guarantees import in_words, span
from fedtrees.report.leakage import MARGIN, LeakageResult, gravity, plain
from fedtrees.report.page_tables import folds, frontier, matrix, price_plot, untested
from fedtrees.report.recipe import Recipe
from fedtrees.report.results import UNDEFENDED, read_json, read_text
from fedtrees.report.verdict import command as typed
from fedtrees.report.verdict import explain_refusal, leak
from fedtrees.report.wording import bytes_text, number

_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)


def render(template: str, **context: Any) -> str:
    """Return a page made from one of the templates in ``page_files``.

    Every value of the context is text and is escaped.
    """
    style, script = (Markup(_file(f"report.{kind}").strip()) for kind in ("css", "js"))
    policy = Markup(security_policy([script]))
    page = _environment().get_template(template)
    return page.render(css=style, js=script, policy=policy, **context)


def security_policy(scripts: Iterable[str], images: str = "data:") -> str:
    """Return the content security policy of a page that contains these inline scripts and no other.

    Inline styles are allowed, because the figures set positions and colours in attributes. `images`
    lists the allowed sources of images.

    Examples
    --------
    >>> security_policy([""]).split("; ")[2]
    "script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src {images}"


def inline_scripts(fragment: str) -> list[str]:
    """Return the text of every inline script of an HTML fragment, for `security_policy`."""
    return _SCRIPT.findall(fragment)


@cache
def _environment() -> jinja2.Environment:
    """Return the template engine. It escapes every value and refuses undefined names."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["px"] = lambda v: f"{float(v):.1f}"
    env.filters["pieces"] = lambda text: re.split(r"(?<=[+,\]])|(?=\[)", str(text))
    return env


@cache
def _file(name: str) -> str:
    """Return the text of a file in ``page_files``."""
    return (resources.files(__package__) / "page_files" / name).read_text(encoding="utf-8")


_SLOTS = ("rows", "guess", "certain")  # kinds of facts on the tile of an adversary (`Measure.slot`)
_MOST_SEEN = 4


@dataclass(frozen=True)
class Method:
    """How to reproduce a run: the command, the suite and the versions of the software."""

    command: str
    suite: str
    versions: str


def page(analysis: RunAnalysis, method: Method) -> str:
    """Return the report as one HTML document. The same run gives the same bytes.

    Parameters
    ----------
    analysis : RunAnalysis
        Findings of the run.
    method : Method
        How to reproduce the run.
    """
    pages = [_setting(f, at) for at, f in enumerate(analysis.settings)]
    tables = sorted({f.setting.dataset for f in analysis.settings})
    title = f"{wording.some(tables, 3)}: privacy findings" if tables else "privacy findings"
    return render(
        "report.html.j2",
        title=title,
        pages=pages,
        glossary=_glossary(analysis),
        command=method.command,
        suite=method.suite,
        versions=method.versions,
        version=analysis.version or "of unknown version",
    )


def _setting(findings: SettingFindings, at: int) -> dict[str, Any]:
    """Return the contents of the page of one setting."""
    recipe = _recipe(findings)
    return {
        "tab": findings.setting.protocol.partition("[")[0],
        "where": _where(findings),
        "headline": _headline(findings),
        "note": _note(findings),
        "margin": f"{findings.margin:g}",
        "utility": measure(findings.utility.metric).head,
        "tiles": [_tile(findings, a) for a in findings.adversaries],
        "recipe": recipe,
        "refused": "" if recipe else explain_refusal(findings),
        "frontiers": [f for a in findings.tested if (f := frontier(findings, a, at))],
        "matrix": matrix(findings),
        "untested": list(untested(findings)),
        "folds": list(folds(findings)),
    }


def _where(findings: SettingFindings) -> str:
    """Return the line that names the setting, its seeds, and the utility without a defense."""
    name = measure(findings.utility.metric).head
    s = findings.setting
    parts = [s.dataset, s.partition, s.protocol, many(findings.seeds, "seed")]
    if math.isfinite(findings.undefended):
        local_utility = findings.local
        text = f"{name} {number(findings.undefended)} undefended"
        parts.append(
            text
            + (f", {number(local_utility)} training alone" if math.isfinite(local_utility) else "")
        )
    return " · ".join(parts)


def _headline(findings: SettingFindings) -> str:
    """Write one sentence: the leak, the leak that the recipe leaves, and the price."""
    lead = findings.leak
    if lead.kind != "leak" or lead.result is None or lead.adversary is None:
        return leak(findings)
    cell = lead.result
    base = "Undefended" if findings.base == UNDEFENDED else f"With {wording.short(findings.base)}"
    text = f"{base}, {lead.adversary.name} can " + measure(cell.metric).phrase.format(
        wording.amount(cell, cell.score)
    )
    use = findings.use
    if use is None:
        if findings.base != UNDEFENDED:
            return f"{text}."
        tried = any(d.spec != UNDEFENDED for d in findings.defenses)
        return f"{text}; {'nothing that was tried helps' if tried else 'no defense was tried'}."
    after = _after(use, lead.adversary, cell.metric)
    if after is None:
        return f"{text}."
    remaining = "nothing" if after.state == "gone" else wording.value(after, after.score)
    price, utility_head = use.price.settled, measure(findings.utility.metric).head
    cost = {
        "same": "at no price", "equal": "at no price beyond 0.01", "ok": "at no loss beyond 0.01",
        "worse": f"for {wording.change(use.price.change)} of {utility_head}",
    }.get(price, "at a price that is not settled")  # fmt: skip
    return f"{text}; {wording.short(use.name)} leaves {remaining}, {cost}."


def _after(use: Recipe, adversary: AdversaryFindings, metric: str) -> LeakageResult | None:
    """Return the cell of a measure under the recipe, None if it was not measured."""
    trial = use.at(adversary.threat)
    return trial.result(metric) if trial else None


def _note(findings: SettingFindings) -> str:
    """Write notes about useless models and about the metric of prices."""
    lost = [d.spec for d in findings.defenses if d.price.collapsed]
    parts = []
    if lost:
        parts.append(f"Under {wording.some(lost)} the model is no better than the constant one.")
    u = findings.utility
    if u.fallen:
        parts.append(
            f"{measure(u.fallen).head} is undefined in {u.lacking} of {many(u.seeds, 'seed')}: a "
            f"held-out set lacks one class. Prices are in {measure(u.metric).head}."
        )
    elif u.few:
        parts.append(u.few)
    return " ".join(parts)


def _tile(findings: SettingFindings, adversary: AdversaryFindings) -> dict[str, Any]:
    """Return the contents of the tile of one adversary."""
    seen = adversary.sees[:_MOST_SEEN]
    sees = listed(list(seen)) + (", and more" if len(adversary.sees) > _MOST_SEEN else "")
    out: dict[str, Any] = {"name": wording.capital(adversary.name), "sees": sees if seen else ""}
    if not adversary.tested:
        say = f"Its view was not attacked in this run. Add --threat {adversary.threat}."
        return {**out, "facts": [], "why": ("Not tested", say)}
    facts = [_fact(findings, adversary, c) for c in _three(adversary)]
    why = ("No attack applies", "No attack that ran applies to the messages of this view.")
    return {**out, "facts": facts, "why": why}


def _three(adversary: AdversaryFindings) -> list[LeakageResult]:
    """Return up to three cells: the leading one, and the gravest cell of each slot.

    Open cells come first.
    """
    cells = [c for c in adversary.results(adversary.base) if c.scores]
    best = []
    for slot in _SLOTS:
        of_slot = [c for c in cells if measure(c.metric).slot == slot]
        if of_slot:
            best.append(min(of_slot, key=lambda c: (c.state != "open", gravity(c.metric))))
    lead = adversary.leading()
    # The leading measure can have no slot.
    if lead is not None and lead not in best:
        best.append(lead)
    return sorted(best, key=lambda c: (c is not lead, c.state != "open"))[: len(_SLOTS)]


def _fact(
    findings: SettingFindings, adversary: AdversaryFindings, cell: LeakageResult
) -> dict[str, Any]:
    """Return one fact of a tile: a score without and with the recipe, and its baseline."""
    after = _after(findings.use, adversary, cell.metric) if findings.use else None
    share = measure(cell.metric).decimals is None
    to = after.score if after is not None and after.scores else None
    counted = math.isfinite(cell.rows)
    of = f"of {cell.rows:,.0f}, {wording.line(cell)}" if counted else wording.line(cell)
    return {
        "head": wording.capital(measure(cell.metric).head),
        "state": cell.state,
        "before": wording.value(cell, cell.score),
        "after": None if after is None else wording.shown(after),
        "after_state": after.state if after else "",
        "of": of,
        "at": _clip(cell.score) if share else None,
        "to": _clip(to) if share and to is not None else None,
        "blind_at": _clip(cell.line) if share else 0.0,
    }


def _clip(value: float) -> float:
    """Return a share, limited to the range from 0 to 1."""
    return min(max(value, 0.0), 1.0)


def _recipe(findings: SettingFindings) -> dict[str, Any] | None:
    """Return the contents of the section about the recipe, None if there is no recipe."""
    use = findings.use
    if use is None:
        return None
    protocol, defense = wording.split_recipe(use.name)
    parts = [(protocol, _about("protocol", protocol))] if protocol else []
    parts += [(str(p), _about("defense", p.name)) for p in parse_one(defense).parts]
    e = use.price.change
    base = findings.defended(UNDEFENDED)
    defended = findings.defended(use.name)
    line = typed(use)
    traffic = bytes_text(use.bytes)
    if base is not None and math.isfinite(base.cost.bytes):
        traffic += f" instead of {bytes_text(base.cost.bytes)}"
    return {
        "title": "Switch this on" if use.holds else "What eases it, and does not stop it",
        "parts": parts,
        "command": line if protocol else f'-d "{line}"',
        "change": number(e.mean, 3, signed=True),
        "interval": wording.interval(use.price.change),
        "plot": price_plot(use.price),
        "settled": wording.settled(use.price),
        "tag": use.price.settled,
        "traffic": traffic,
        "guarantee": _guarantee(defended) if defended else "see that protocol's own page",
        "remains": list(_remains(findings, use)),
    }


def _guarantee(defended: DefenseResult) -> str:
    """Describe the spent guarantee of a defense, its meaning, and the result of an audit."""
    text = span(defended.guarantees.spent) or span(defended.guarantees.claimed) or "none"
    meaning = in_words(defended.guarantees.spent)
    text += f" ({meaning})" if meaning else ""
    measured = span(defended.guarantees.measured)
    text += f"; measured {measured}" if measured else ""
    return f"{text}: {defended.void}" if defended.void else text


def _about(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring, without references to papers."""
    try:
        plugin = register.get(kind, parse_one(name).parts[0].name)
    # The plug-in belongs to another release or to a file that is not loaded.
    except Exception:
        return ""
    first = (plugin.__doc__ or "").strip().partition("\n")[0].replace("`", "")
    return re.sub(r" \([^()]*\d{4}[^()]*\)", "", first)


def _remains(findings: SettingFindings, use: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each adversary with a sentence about what it can learn in spite of the recipe."""
    for adversary in findings.adversaries:
        name = wording.capital(adversary.name)
        trial = use.at(adversary.threat)
        if not adversary.tested or trial is None:
            yield name, "was not tested."
            continue
        cells = plain([c for c in trial.results if c.state == "open"])
        cells.sort(key=lambda c: gravity(c.metric))
        failed = [c for c in trial.results if c.below_baseline]
        doubt = [
            c for c in trial.results if c.state in ("unsettled", "unknown") and c not in failed
        ]
        if cells:
            yield name, f"can still {listed([wording.can(c) for c in cells])}."
        elif doubt:
            yield name, f"learns nothing for certain; not settled: {_heads(doubt)}."
        elif not failed:
            yield (
                name,
                f"learns no more than a blind guess (within {findings.margin:g}) by any measure.",
            )
        if failed:
            yield (
                name,
                f"({_heads(failed)}): the attack scored worse than a blind guess, which shows "
                "nothing.",
            )


def _heads(cells: list[LeakageResult]) -> str:
    """List the names of the measures of some cells."""
    return listed([*dict.fromkeys(measure(c.metric).head.lower() for c in cells)])


def _glossary(analysis: RunAnalysis) -> list[tuple[str, str]]:
    """Return the terms of the page with their explanations."""
    used = dict.fromkeys(m for f in analysis.settings for a in f.tested for m in a.all_metrics)
    words = [
        ("Blind guess", "The best of several guesses by the same adversary with an empty "
         "transcript. An adversary without rows is also compared with the population baseline, "
         "which knows other rows of the population, as its attacks do."),
        *((wording.capital(measure(m).head), _explain_metric(m)) for m in used
          if _explain_metric(m).lower() != f"{measure(m).head}."),
        ("Leak ●", "The advantage over the better baseline is above the margin in the mean (of "
         "persons: one row or more), and above zero in every seed or with its whole interval."),
        ("Within the margin ■", "The mean advantage is at least minus the margin, and the upper "
         "end of its 95% t interval lies below the margin; three seeds or more; every applicable "
         "attack finished."),
        ("Not settled ◆", "Neither is shown. More seeds settle it, unless the attack scored worse "
         "than a blind guess: then the attack failed, and nothing is shown about the defense."),
        ("Recipe", "What holds against every adversary of the run; where nothing does, what leaves "
         "least: rows and labels first, then guesses, then facts about groups; ties by price."),
    ]  # fmt: skip
    return words


def _explain_metric(metric: str) -> str:
    """Return the explanation of a measure."""
    definition = measure(metric)
    return definition.explained or f"{wording.capital(definition.name)}."


def write_report(run_folder: str | Path, margin: float = MARGIN) -> Path:
    """Write ``report.html`` into a run folder. The same run gives the same bytes.

    Parameters
    ----------
    run_folder : str or Path
        Folder with ``rows.csv``. The files ``suite.toml``, ``environment.json`` and
        ``disclosure.json`` are shown if they exist.
    margin : float
        Largest advantage under a defense that counts as no better than a blind guess.

    Returns
    -------
    path : Path
        The written file.

    Raises
    ------
    StoreError
        If the rows cannot be read or the report cannot be written.
    UsageError
        If the margin is not valid.
    """
    return write_page(analyze_run(Path(run_folder), margin=margin))


def write_page(analysis: RunAnalysis) -> Path:
    """Write ``report.html`` into the folder of a run. For errors see `write_report`."""
    return write_text(analysis.folder / "report.html", render_report(analysis))


def render_report(analysis: RunAnalysis) -> str:
    """Return the report as one HTML document."""
    return page(analysis, _read_method(analysis.folder))


def _read_method(folder: Path) -> Method:
    """Read the command, the suite and the versions that reproduce a run.

    Files that are missing are replaced by default texts.
    """
    environment = read_json(folder, "environment.json")
    environment = environment if isinstance(environment, dict) else {}
    command = environment.get("command")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    suite = read_text(folder, "suite.toml")
    text = "(the run kept no suite.toml)" if suite is None else without_folders(suite)
    return Method(
        str(command or "fedtrees bench --suite suite.toml"), text, _describe_versions(environment)
    )


def _describe_versions(environment: dict[str, Any]) -> str:
    """Write the versions of software and the digests of tables in one line."""
    facts = {
        k: v for k, v in environment.items() if k not in ("suite", "libraries", "tables", "command")
    }
    parts = [f"{k} {v}" for k, v in sorted(facts.items()) if isinstance(v, (str, int, float))]
    libraries = environment.get("libraries")
    if isinstance(libraries, dict):
        parts += [f"{k} {v}" for k, v in sorted(libraries.items())]
    for table in environment.get("tables") or ():
        if isinstance(table, dict):
            parts.append(f"{PurePath(str(table.get('file'))).name}: sha256 {table.get('sha256')}")
    return "; ".join(parts)


def without_folders(suite: str) -> str:
    """Return the text of a suite with the names of its files instead of their paths.

    The paths can reveal private information about the computer on which the run was made. A suite
    that cannot be parsed, or that still contains a path, is not shown.
    """
    try:
        grids = tomllib.loads(suite).get("grid", [])
        tables = [table for grid in grids for table in grid.get("data", ()) if "csv" in table]
        paths = {str(t["csv"]): _split_files(str(t["csv"]), "id" in t) for t in tables}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "(not shown: it cannot be parsed)"
    for path, parts in paths.items():
        names = ",".join(PurePath(part).name for part in parts)
        suite = suite.replace(_toml_string(path), _toml_string(names))
        # A path that occurs in another notation, for example in a comment, cannot be replaced
        # reliably.
        if names != path and path in suite:
            return "(not shown: it names the folders of tables)"
    return suite


def _split_files(csv: str, joined: bool) -> list[str]:
    """Return the files from which a table is read. A comma can also be part of a folder's name."""
    parts = csv.split(",")
    return parts if joined or all(PurePath(part).suffix for part in parts) else [csv]


def _toml_string(text: str) -> str:
    """Write a text as a TOML string, in the same way as suites are written."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
