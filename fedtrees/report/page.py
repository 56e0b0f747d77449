"""Write the findings of a run as one HTML page that needs no network.

`write_page` writes the report of a run. The template ``report.html.j2`` reads the findings
(`fedtrees.report.findings`) and calls the functions of this module for sentences, and those of
`page_tables` for tables and figures.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from fedtrees.core.errors import listed, many
from fedtrees.core.files import write_text
from fedtrees.core.guarantee import AtLeast
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_one
from fedtrees.report import page_tables, verdict, wording
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.cost import MOST_SEEDS
from fedtrees.report.findings import (
    DefenseResult,
    RunAnalysis,
    SettingFindings,
    analyze_run,
)
from fedtrees.report.guarantees import in_words, span
from fedtrees.report.leakage import MARGIN, LeakageResult, gravity
from fedtrees.report.local_baseline import compare_with_training_alone
from fedtrees.report.recipe import Recipe
from fedtrees.report.results import UNDEFENDED, read_json, read_text
from fedtrees.report.web_page import render
from fedtrees.report.wording import bytes_text, number

_SLOTS = ("rows", "guess", "certain")  # kinds of facts on the tile of an adversary (`Measure.slot`)


def render_report(analysis: RunAnalysis) -> str:
    """Return the report as one HTML document. The same run gives the same bytes."""
    tables = sorted({f.setting.dataset for f in analysis.settings})
    environment = read_json(analysis.folder, "environment.json")
    environment = environment if isinstance(environment, dict) else {}
    command = environment.get("command")
    suite = read_text(analysis.folder, "suite.toml")
    return render(
        "report.html.j2",
        title=f"{wording.some(tables, 3)}: privacy findings" if tables else "privacy findings",
        settings=analysis.settings,
        texts=_TEXTS,
        tables=page_tables,
        measures=_measures(analysis),
        command=" ".join(map(str, command)) if isinstance(command, list)
        else str(command or "fedtrees bench --suite suite.toml"),
        suite="(the run kept no suite.toml)" if suite is None else without_folders(suite),
        versions=_describe_versions(environment),
        version=analysis.version or "of unknown version",
    )  # fmt: skip


def where(findings: SettingFindings) -> str:
    """Return the line that names the setting, its seeds, and the utility without a defense."""
    name = measure(findings.utility.metric).head
    s = findings.setting
    parts = [s.dataset, s.partition, s.protocol, many(findings.seeds, "seed")]
    if math.isfinite(findings.undefended):
        local_utility = findings.local_utility
        text = f"{name} {number(findings.undefended)} undefended"
        parts.append(
            text
            + (
                f", {number(local_utility)} if a party trains without the others"
                if math.isfinite(local_utility)
                else ""
            )
        )
    return " · ".join(parts)


def headline(findings: SettingFindings) -> str:
    """Write one sentence: the leak, the leak that the recipe leaves, and the utility change."""
    lead = findings.leak
    if lead.kind != "leak" or lead.result is None or lead.adversary is None:
        return verdict.leak(findings)
    cell = lead.result
    base = (
        "Undefended"
        if findings.baseline_defense == UNDEFENDED
        else f"With {wording.short(findings.baseline_defense)}"
    )
    text = f"{base}, {lead.adversary.name} can " + measure(cell.metric).phrase.format(
        wording.amount(cell, cell.score)
    )
    use = findings.recommended_recipe
    if use is None:
        if findings.baseline_defense != UNDEFENDED:
            return f"{text}."
        tried = verdict.tried_recipes(findings)
        return f"{text}; {'nothing that was tried helps' if tried else 'no defense was tried'}."
    after = use.result(lead.adversary.threat, cell.metric)
    if after is None:
        return f"{text}."
    remaining = "nothing"
    if after.state != "not-applicable":
        score, guess = (wording.value(after, x) for x in (after.score, after.baseline))
        remaining = f"{score} (a guess: {guess})"
    change_kind, utility_head = use.utility_change.settled, measure(findings.utility.metric).head
    cost = {
        "same": "at no price", "equal": "at no price beyond 0.01", "ok": "at no loss beyond 0.01",
        "worse": f"for {wording.change(use.utility_change.change)} of {utility_head}",
    }.get(change_kind, "at a price that is not settled")  # fmt: skip
    # Without this clause, the sentence could be read as if the recipe prevented everything else.
    rest = ", and leaks remain" if use.leaking_results else ", and not every attack was tried"
    rest = "" if use.holds else rest
    return f"{text}; {wording.short(use.name)} leaves {remaining}, {cost}{rest}."


def note(findings: SettingFindings) -> str:
    """Write notes about useless models and about the metric of utility changes."""
    lost = [d.spec for d in findings.defenses if d.utility_change.collapsed]
    parts = []
    if lost:
        parts.append(f"Under {wording.some(lost)} the model is no better than the constant one.")
    u = findings.utility
    if u.fallen:
        parts.append(
            f"{measure(u.fallen).head} is undefined in {u.lacking} of {many(u.seeds, 'seed')}: a "
            f"test set lacks one class. Prices are in {measure(u.metric).head}."
        )
    elif u.few:
        parts.append(u.few)
    return " ".join(parts)


def leading_results(adversary: AdversaryFindings) -> list[LeakageResult]:
    """Return up to three cells: the leading one, and the gravest cell of each slot.

    Open cells come first.
    """
    cells = [c for c in adversary.results(adversary.baseline_defense) if c.scores]
    best = []
    for slot in _SLOTS:
        of_slot = [c for c in cells if measure(c.metric).slot == slot]
        if of_slot:
            best.append(min(of_slot, key=lambda c: (c.state != "leaking", gravity(c.metric))))
    lead = adversary.leading()
    # The leading measure can have no slot.
    if lead is not None and lead not in best:
        best.append(lead)
    return sorted(best, key=lambda c: (c is not lead, c.state != "leaking"))[: len(_SLOTS)]


def fact(
    findings: SettingFindings, adversary: AdversaryFindings, result: LeakageResult
) -> dict[str, Any]:
    """Return the score of a tile with the recipe, and the positions on its scale from 0 to 1.

    ``at`` is the score without the recipe, ``to`` the score with it, and ``blind`` the baseline.
    They are None if the score is not a share.
    """
    use, share = findings.recommended_recipe, measure(result.metric).decimals is None
    after = use.result(adversary.threat, result.metric) if use else None
    to = after.score if after is not None and after.scores else None
    return {
        "after": after,
        "at": _clip(result.score) if share else None,
        "to": _clip(to) if share and to is not None else None,
        "blind": _clip(result.baseline) if share else 0.0,
    }


def _clip(value: float) -> float:
    """Return a share, limited to the range from 0 to 1."""
    return min(max(value, 0.0), 1.0)


def recipe_parts(use: Recipe) -> list[tuple[str, str]]:
    """Return the protocol of a recipe, if it is another one, and its defenses, with summaries."""
    protocol, defense = wording.split_recipe(use.name)
    parts = [(protocol, _about("protocol", protocol))] if protocol else []
    return parts + [(str(p), _about("defense", p.name)) for p in parse_one(defense).parts]


def recipe_command(use: Recipe) -> str:
    """Return the options of the command line that select a recipe."""
    text = verdict.command(use)
    return text if wording.split_recipe(use.name)[0] else f'-d "{text}"'


def traffic(findings: SettingFindings, use: Recipe) -> str:
    """Write the traffic of training with the recipe, and without a defense if it is known."""
    base = findings.defended(UNDEFENDED)
    if base is None or not math.isfinite(base.cost.bytes):
        return bytes_text(use.bytes)
    return f"{bytes_text(use.bytes)} instead of {bytes_text(base.cost.bytes)}"


def results_of_recipe(
    settings: Sequence[SettingFindings], findings: SettingFindings, use: Recipe
) -> DefenseResult | None:
    """Return the results of a recipe in the setting of its protocol, None if it has none."""
    protocol, defense = wording.split_recipe(use.name)
    if not protocol:
        return findings.defended(defense)
    place = replace(findings.setting, protocol=protocol)
    candidates = (f.defended(defense) for f in settings if f.setting == place)
    return next((d for d in candidates if d is not None), None)


def joining(findings: SettingFindings, use: Recipe) -> str:
    """Return a sentence if joining with the recipe gains no accuracy, "" otherwise."""
    comparison = compare_with_training_alone(findings, use)
    return comparison.sentence if comparison.joining_costs else ""


def more_seeds(findings: SettingFindings) -> tuple[str, int] | None:
    """Return a sentence about the number of seeds with the number to run, None if it is enough."""
    use = findings.recommended_recipe
    if findings.seeds < 3:
        return "Fewer than three seeds settle no result.", 3
    if use is not None and use.utility_change.settled == "unsettled":
        needed = min(use.utility_change.seeds_needed, MOST_SEEDS)
        return "More seeds settle the price of the recipe and further results.", needed
    return ("More seeds settle more results.", 10) if findings.seeds < 10 else None


def guarantee(defended: DefenseResult | None) -> str:
    """Describe the spent guarantee of a defense, its meaning, and the result of an audit."""
    if defended is None:
        return "see the page of that protocol"
    guarantees = defended.guarantees
    claimed = in_words(guarantees.claimed, brief=True)
    text = f"claimed {claimed}" if claimed else in_words(guarantees.spent, brief=True)
    text = text or span(guarantees.spent) or span(guarantees.claimed) or "none"
    bound = next((g for g in guarantees.combined or () if isinstance(g, AtLeast)), None)
    if bound is not None:
        text += f"; the audits of all seeds together measured at least {bound.epsilon:.3g}"
    if text == "structural":
        text = "no epsilon (structural: some values are not sent, but nothing is limited)"
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


def remains(findings: SettingFindings, use: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each adversary with a sentence about what it can learn in spite of the recipe."""
    for adversary in findings.adversaries:
        name = wording.capital(adversary.name)
        trial = use.at(adversary.threat)
        if not adversary.tested or trial is None:
            yield name, "was not tested."
            continue
        leaks, failed, doubt = trial.leaks, trial.failed, trial.doubtful
        if leaks:
            yield name, f"can still {listed([wording.can(r) for r in leaks])}."
        elif doubt:
            yield name, f"is not clearly better than a guess. Not settled: {_heads(doubt)}."
        elif not failed:
            yield (
                name,
                "is shown to learn no more than a guess, by every measure (within "
                f"{findings.margin:g} of the baseline).",
            )
        if failed:
            yield (
                name,
                f"({_heads(failed)}): the attack scored worse than {wording.better_guess(failed)}, "
                "which shows nothing.",
            )


def _heads(cells: list[LeakageResult]) -> str:
    """List the names of the measures of some cells."""
    return listed([*dict.fromkeys(measure(c.metric).head.lower() for c in cells)])


#: Functions that the template calls.
_TEXTS = {
    "where": where, "headline": headline, "note": note, "leading_results": leading_results,
    "fact": fact, "recipe_parts": recipe_parts, "recipe_command": recipe_command,
    "traffic": traffic, "guarantee": guarantee, "remains": remains,
    "results_of_recipe": results_of_recipe, "more_seeds": more_seeds, "joining": joining,
    "explain_refusal": verdict.explain_refusal,
}  # fmt: skip


def _measures(analysis: RunAnalysis) -> list[tuple[str, str]]:
    """Return the measures of the page whose name does not explain them, with explanations."""
    keys = dict.fromkeys(m for f in analysis.settings for a in f.tested for m in a.all_metrics)
    terms = [(measure(key).head, _explain_metric(key)) for key in keys]
    return [(wording.capital(h), text) for h, text in terms if text.lower() != f"{h}."]


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
