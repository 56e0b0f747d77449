"""The sections of the report that are tables: leaderboard, guarantees, cost, gaps, glossary."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from fedtrees.core.counts import many
from fedtrees.core.specs import split_outside
from fedtrees.report import glossary as words
from fedtrees.report import style
from fedtrees.report.claims import span
from fedtrees.report.coverage import stopped
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.grid_figure import draw_cost, draw_protection
from fedtrees.report.intervals import Estimate
from fedtrees.report.markup import Html, esc, join, table, tag
from fedtrees.report.phrases import guarded
from fedtrees.report.rows import UNDEFENDED, Setting, read_json, read_text
from fedtrees.report.sections import Charts, lede, marker, place
from fedtrees.report.study import Study
from fedtrees.report.table_text import exact_rows
from fedtrees.report.tables import (
    Cost,
    Guarantees,
    LeaderRow,
    Protection,
    cost_table,
    guarantee_table,
    protections,
)


def leaderboard(study: Study, charts: Charts) -> Html:
    """One table per panel, a defense per row."""
    about = lede(study, "Mean over seeds, 95% bootstrap interval below it. Changes are against the "
                 "undefended run, paired by seed. Tinted rows are not dominated.")  # fmt: skip
    blocks = [
        tag("div", _board(study, f, board), data_place=place(f.panel.setting, f.panel.threat))
        for f, board in study.boards
    ]
    return join([about, *blocks])


def _board(study: Study, frontier: Frontier, board: Sequence[LeaderRow]) -> Html:
    utility = style.metric_name(frontier.utility)
    better = " (lower is better)" if frontier.utility in LOWER_IS_BETTER else ""
    header = ["defense", utility + better, f"change in {utility}", "worst advantage",
              "change in advantage", "strongest attack", f"{frontier.metric} (blind)",
              "exact rows (blind)", "traffic and time", "guarantee"]  # fmt: skip
    classes = ["front" if r.on_front else "base" * (r.point.defense == UNDEFENDED) for r in board]
    wide = {0: "parts", 5: "free"}
    known = max([r.point.utility.n for r in board], default=0)
    lines = [_line(study, row, known) for row in board]
    refs = "; ".join(f"{n} {style.interval(e)}" for n, e in frontier.references if e.known)
    caption = f"{frontier.panel}, {many(known, 'seed')}"
    after = tag("p", f"Without a federation: {utility} {refs}.", class_="facts") if refs else ""
    heads = [study.explained(h) for h in header]
    return join([table(caption, heads, lines, (1, 2, 3, 4, 6, 7, 8), classes, wide), after])


def _line(study: Study, row: LeaderRow, seeds: int) -> list[object]:
    p = row.point
    name = join(
        [
            marker(style.SHAPES[p.kind][0], study.colours[p.family][0], p.hollow),
            "\N{NO-BREAK SPACE}",
            _breakable(p.defense),
        ]
    )
    attacks = join(
        [a if n == p.advantage.n else f"{a} ({n} of {p.advantage.n})" for a, n in p.attacks], ", "
    )
    for said in (str(p.coverage) if p.hollow else "", stopped(p.coverage.early)):
        attacks = join([attacks, tag("small", said)]) if said else attacks
    if p.note:
        attacks = join([attacks, tag("small", p.note)])
    same = p.defense == UNDEFENDED
    blind = tag("small", f"({style.number(p.blind.mean)})")
    score = join([style.number(p.score.mean), blind])
    seconds = style.seconds_text(row.cost.seconds.mean)
    return [
        name,
        _stacked(p.utility, seeds),
        "" if same else _stacked(row.change, seeds, signed=True),
        _stacked(p.advantage, seeds, signed=True),
        "" if same else _stacked(row.relief, seeds, signed=True),
        attacks,
        score if p.advantage.known else "–",
        exact_rows(row),
        join([style.bytes_text(row.cost.bytes), tag("small", seconds)]),
        _guarantee(row.guarantees),
    ]


def _stacked(e: Estimate, seeds: int, signed: bool = False) -> Html:
    """Write the mean with its interval below, and how many seeds it has if some are missing."""
    below = []
    if math.isfinite(e.low):
        low, high = style.number(e.low, 3, signed), style.number(e.high, 3, signed)
        below.append(tag("small", f"[{low}, {high}]"))
    if 0 < e.n < seeds:
        below.append(tag("small", f"{e.n} of {many(seeds, 'seed')}"))
    return join([style.number(e.mean, 3, signed), *below])


def _guarantee(g: Guarantees) -> Html:
    texts = {"claimed": g.claimed, "spent": g.spent, "measured": g.measured}
    if g.claimed == g.spent and not g.measured:
        return _breakable(span(g.claimed) or "not known")
    return join(tag("small", f"{k} ", _breakable(span(v))) for k, v in texts.items() if v)


def _breakable(text: str) -> Html:
    """Let names and guarantees break between terms and parameters, not at hyphens."""
    pieces = "+\0".join(split_outside(text, "+")).replace(",", ",\0").split("\0")
    return join((tag("span", p, class_="nb") for p in pieces), Html("<wbr>"))


def guarantees(study: Study, charts: Charts) -> Html:
    """Set what is claimed beside what was spent and what an audit measured."""
    about = lede(
        study,
        "What is claimed, what was spent and what an audit measured. A bench draws noise from the "
        "seed, so that it can be repeated: these bounds are those of the same noise from the "
        "operating system, and of the bench's own models none holds.",
    )
    # Most settings of a run say the same: say it once.
    same: dict[tuple[Guarantees, ...], list[Setting]] = {}
    for setting in study.settings:
        same.setdefault(guarantee_table(study.rows, setting), []).append(setting)
    blocks = []
    for entries, settings in same.items():
        lines = [
            [g.defense, *(span(t) or "–" for t in (g.claimed, g.spent, g.measured)), g.verdict]
            for g in entries
        ]
        header = ["defense", "claimed", "spent", "measured", "reading"]
        wide = {1: "code", 2: "code", 3: "code", 4: "free"}
        made = table("; ".join(map(str, settings)), header, lines, column_class=wide)
        only = place(settings[0]) if len(settings) == 1 else None
        blocks.append(tag("div", made, data_place=only))
    return join([about, *blocks])


def cost(study: Study, charts: Charts) -> Html:
    """Bytes per direction and message type, rounds, seconds."""
    blocks = []
    for setting in study.settings:
        costs = cost_table(study.rows, setting)
        known = [c for c in costs if math.isfinite(c.bytes) or c.seconds.known]
        parts: list[object] = [tag("h3", setting)]
        if known:
            about = f"{setting}: bytes and seconds per defense; table below"
            drawn = draw_cost(known).json()
            parts.append(tag("div", charts.add({"": drawn}, about, columns=6), class_="wide"))
        parts += [_cost_totals(str(setting), costs), _cost_types(str(setting), costs)]
        mine = [f for f in study.frontiers if f.panel.setting == setting]
        parts.append(_protection(str(setting), mine, protections(mine, costs), charts))
        blocks.append(tag("div", join(parts), data_place=place(setting)))
    return join(blocks)


def _cost_totals(title: str, costs: Sequence[Cost]) -> Html:
    base = next((c.bytes for c in costs if c.defense == UNDEFENDED), math.nan)
    lines = []
    for c in costs:
        times = c.bytes / base if base else math.nan
        lines.append([
            c.defense, style.bytes_text(c.up.mean), style.bytes_text(c.down.mean),
            f"×{times:.3g}" if math.isfinite(times) else "–", style.number(c.rounds.mean, 0),
            style.seconds_text(c.seconds.mean), style.seconds_text(c.cpu_seconds.mean),
        ])  # fmt: skip
    header = ["defense", "up", "down", "of undefended", "rounds", "wall clock", "processor"]
    return table(f"{title}: cost of training", header, lines, range(1, 7))


def _cost_types(title: str, costs: Sequence[Cost]) -> Html:
    kinds = sorted({(name, direction) for c in costs for direction, name, _ in c.by_type})
    if not kinds:
        return Html("")
    lines = []
    for c in costs:
        mine = {(name, direction): e.mean for direction, name, e in c.by_type}
        lines.append([c.defense, *(style.bytes_text(mine.get(k, math.nan)) for k in kinds)])
    header = ["defense", *(f"{name} {direction}" for name, direction in kinds)]
    made = table(f"{title}: bytes per message type", header, lines, range(1, len(header)))
    return tag("details", tag("summary", "Bytes per message type and direction"), made)


def _protection(
    title: str, mine: Sequence[Frontier], entries: Sequence[Protection], charts: Charts
) -> Html:
    """Set what cryptography costs beside what each party still reads."""
    if not entries or not mine:
        return Html("")
    lede = tag("p", "What cryptography costs, and what every party still reads: the worst "
               "advantage of the attacks that ran, by threat. Operations are of all parties "
               "together; bytes and ciphertexts are counted where they cross.",
               class_="lede")  # fmt: skip
    about = f"{title}: bytes, seconds and ciphertexts beside the worst advantage; table below"
    chart = charts.add({"": draw_protection(entries).json()}, about, columns=9)
    names = sorted({name for e in entries for name, _ in e.cost.operations})
    header = ["defense", "bytes", "processor", "ciphertexts sent",
              *(name.replace("_", " ") for name in names),
              *(join([f.panel.threat, tag("small", f.metric)]) for f in mine)]  # fmt: skip
    lines = []
    for e in entries:
        done = {name: found.mean for name, found in e.cost.operations}
        lines.append([
            e.cost.defense, style.bytes_text(e.cost.bytes),
            style.seconds_text(e.cost.cpu_seconds.mean),
            style.number(e.cost.ciphertexts.mean, 0),
            *(style.number(done.get(name, math.nan), 0) for name in names),
            *(_reads(point) for _, point in e.reads),
        ])  # fmt: skip
    made = table(f"{title}: cost against protection", header, lines, range(1, len(header)))
    return join([tag("h4", "Cost against protection"), lede, tag("div", chart, class_="wide"),
                 made])  # fmt: skip


def _reads(point: Point | None) -> Html:
    """Write the worst advantage under a threat, and by which attack; why not, where none is."""
    if point is None or not point.advantage.known:
        return esc("–")
    attack = point.attacks[0][0] if point.attacks else ""
    mean = style.number(point.advantage.mean, signed=True)
    return join([mean, tag("small", attack)])


def disclosure(study: Study, charts: Charts) -> Html:
    """Who sees what: every kind of message that crossed, what it reveals and why."""
    found = read_json(study.folder, "disclosure.json")
    if not found:
        return tag("p", "This run kept no disclosure record (disclosure.json).", class_="note")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in found:
        key = (str(entry.get("protocol", "")), str(entry.get("defense", "")))
        groups.setdefault(key, []).append(entry)
    lede = tag("p", "Every kind of message that crossed, from a short run of two trees per "
               "protocol and defense. Coloured: what the receiver can read about people, with no "
               "defense acting on it.", class_="lede")  # fmt: skip
    header = ["message", "from", "to", "reveals", "withheld", "why it is sent", "guarded by",
              "count", "bytes"]  # fmt: skip
    order = sorted(groups.items(), key=lambda kv: (kv[0][0], kv[0][1] != UNDEFENDED, kv[0][1]))
    blocks: list[object] = [lede]
    for (protocol, defense), entries in order:
        made = table(f"{protocol}, {defense}", header, map(_crossing, entries), (7, 8))
        summary = tag("summary", f"{protocol} with {defense}: {len(entries)} kinds of message")
        blocks.append(tag("details", summary, made, open=defense == UNDEFENDED))
    return join(blocks)


def _crossing(entry: dict[str, Any]) -> list[object]:
    receiver = str(entry.get("to", ""))
    reader = str(entry.get("readable_by") or receiver) + " (sealed)" * bool(entry.get("sealed"))
    to = receiver if reader == receiver else join([receiver, tag("small", f"read by {reader}")])
    return [
        entry.get("type", ""), entry.get("from", ""), to, _reveals(entry),
        ", ".join(_texts(entry.get("withheld"))) or "–", entry.get("why", ""),
        guarded(entry.get("guards", ())) or "–",
        style.number(_float(entry.get("count")), 0),
        style.bytes_text(_float(entry.get("bytes"))),
    ]  # fmt: skip


def _texts(value: object) -> list[str]:
    """Return a list of texts, whether the record holds a list, one text or nothing."""
    if isinstance(value, (list, tuple)):
        return [str(v) for v in value]
    return [str(value)] if value else []


def _reveals(entry: dict[str, Any]) -> Html:
    acted_on = any(guard.get("act") == "guards" for guard in entry.get("guards", ()))
    hot = {"labels", "features", "ids", "counts", "membership"}
    return join(
        tag("span", n, class_="chip hot" if n in hot and not acted_on else "chip")
        for n in _texts(entry.get("reveals"))
    )


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def gaps(study: Study, charts: Charts) -> Html:
    """Every defense, threat and attack that did not run, and why, in one table."""
    all_seeds = study.rows["seed"].dropna().nunique()
    run: dict[Setting, set[str]] = {}
    for frontier, board in study.boards:
        fit = {r.point.defense for r in board if not r.point.unfit}
        run.setdefault(frontier.panel.setting, set()).update(fit)
    merged: dict[tuple[str, ...], list[Setting]] = {}
    for gap in study.gaps.found:
        every = len(gap.against) > 1 and {*gap.against} >= run.get(gap.setting, {""})
        against = "every defense" if every else ", ".join(gap.against)
        seeds = f"seed{'s' * (len(gap.seeds) > 1)} {', '.join(map(str, gap.seeds))}"
        some = 0 < len(gap.seeds) < all_seeds
        status = f"{gap.status} ({seeds})" if some else gap.status
        where = ", against ".join(filter(None, (gap.threat, against)))
        key = (status, gap.kind, ", ".join(gap.names), where, str(gap.why))
        merged.setdefault(key, []).append(gap.setting)
    if not merged:
        return tag("p", "Everything that is here ran, and every cell finished.")
    about = lede(study, "What failed first, then what could have run and was not asked for, then "
                 "what does not apply. A failed attack is not a defense: the points it touches are "
                 "hollow.")  # fmt: skip
    whole = {*study.settings}
    lines = [
        [_breakable(names), kind, status, where, why,
         "" if {*settings} == whole else join(map(str, settings), "; ")]
        for (status, kind, names, where, why), settings in merged.items()
    ]  # fmt: skip
    header = ["what", "kind", "status", "by whom, against what", "why", "where, if not everywhere"]
    wide = {0: "parts", 3: "free", 4: "prose", 5: "free"}
    return join([about, table("What did not run, and why", header, lines, column_class=wide)])


def glossary(study: Study, charts: Charts) -> Html:
    """What the words of the report mean."""
    return words.glossary()


def methods(study: Study, charts: Charts) -> Html:
    """How to get the figures again."""
    parts: list[object] = []
    environment = read_json(study.folder, "environment.json")
    command = environment.get("command") if isinstance(environment, dict) else None
    if isinstance(command, list):
        command = " ".join(map(str, command))
    parts.append(tag("pre", str(command or "fedtrees bench --suite suite.toml")))
    suite = read_text(study.folder, "suite.toml")
    if suite is None:
        parts.append(tag("p", "The run kept no suite.toml.", class_="note"))
    else:
        parts += [tag("h3", "suite.toml"), tag("pre", without_folders(suite), tabindex="0")]
    tables = environment.get("tables") if isinstance(environment, dict) else None
    if isinstance(tables, list) and tables:
        named = [
            f"{t.get('file')}: sha256 {t.get('sha256')}" for t in tables if isinstance(t, dict)
        ]
        parts.append(tag("p", "Tables: ", join(tag("code", each) for each in named), "."))
    if environment is not None:
        if isinstance(environment, dict):
            environment = {k: v for k, v in environment.items() if k != "suite"}  # shown above
        text = json.dumps(environment, indent=2, sort_keys=True, ensure_ascii=False)
        made = tag("pre", text, tabindex="0")
        parts.append(tag("details", tag("summary", "Environment"), made))
    return join(parts)


def without_folders(suite: str) -> str:
    """Return a suite with CSV files by their names alone: where they lie is their owner's affair.

    A suite that cannot be parsed, which no run writes, is not shown.
    """
    try:
        grids = tomllib.loads(suite).get("grid", [])
        tables = [table for grid in grids for table in grid.get("data", ()) if "csv" in table]
        paths = {str(t["csv"]): str(t["csv"]).split(",") if "id" in t else [t["csv"]]
                 for t in tables if isinstance(t, dict)}  # fmt: skip
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "(not shown: it cannot be parsed)"
    for path, parts in paths.items():
        names = ",".join(PurePath(part).name for part in parts)
        suite = suite.replace(_toml(path), _toml(names))
        if names != path and path in suite:
            return "(not shown: it names the folders of tables)"
    return suite


def _toml(text: str) -> str:
    """Write a text as suites do."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
