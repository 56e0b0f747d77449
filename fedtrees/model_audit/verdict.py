"""Findings of an audit as sentences (`verdict`, `advice`) and as plain JSON types (`to_json`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedtrees.core.errors import many
from fedtrees.model_audit.attack import AttackResult
from fedtrees.model_audit.audit import ONCE, SAMPLED, Audit
from fedtrees.model_audit.exposure import SMALL, UNKNOWN, TreeExposure
from fedtrees.model_audit.leaf_value_counts import may_be_mean
from fedtrees.model_audit.model import ModelFile
from fedtrees.model_audit.readers import XGBOOST_STATISTICS
from fedtrees.model_audit.scrub import LOST, Scrubbed
from fedtrees.model_audit.tables import names_lines, names_text

SETTINGS = {
    "learning_rate": "learning_rate",
    "reg_lambda": "reg_lambda",
    "settings_source": "source",
    "settings_equations": "equations",
    "settings_worst_residual": "worst",
}


class Finding(str):
    """A finding as a sentence.

    Attributes
    ----------
    short : str
        The beginning of the text, for a screen with little room.
    """

    short: str

    def __new__(cls, short: str, more: str = "") -> Finding:
        """Create a finding from its beginning and its continuation."""
        finding = super().__new__(cls, f"{short} {more}".strip())
        finding.short = short
        return finding


def verdict(audit: Audit) -> list[Finding]:
    """Return the findings for the owner of the training data, the most important one first."""
    s = audit.summary
    lines: list[str] = [_counts_line(audit)]
    if audit.model.released is not None:
        lines.append(_noise_line(audit.model))
    if audit.restored:
        lines.append(
            "sum_hessian is masked, but this hides nothing: the file still contains base_weights "
            "and loss_changes, from which two equations per split determine every masked sum."
        )
    lines += _conditions_lines(audit)
    lines += _small_leaves(audit)
    sure = " under these conditions" if audit.assumes else ""
    # The sentence about persons of the table requires a tree that saw the complete table.
    if s.rows_in_pure:
        lines.append(
            f"{many(s.pure, 'leaf is', 'leaves are')} pure{sure}: all rows of such a leaf have the "
            "same label. An attacker who knows that a person is in the training table, and knows "
            "this person's values in the few columns that a tree uses, infers the label. One tree "
            f"reveals the labels of up to {s.rows_in_pure} people in this way."
        )
    elif s.rows_of_one_label:
        lines.append(
            Finding(
                f"{many(s.one_label, 'leaf contains', 'leaves contain')} only rows of one label"
                f"{sure}, among the rows on which the tree was grown: up to {s.rows_of_one_label} "
                "rows per tree.",
                "If the tree was grown on the complete table, which only --rows can confirm, an "
                "attacker who knows that a person is in the table, and knows this person's values "
                "in the few columns that a tree uses, infers the label.",
            )
        )
    if audit.model.hidden:
        nodes = sum(int(hidden.sum()) for hidden in audit.model.hidden)
        lines.append(
            f"{many(nodes, 'threshold is', 'thresholds are')} not in this file (NaN): another "
            "party of a secure vertical training keeps them. This file nevertheless contains the "
            "sums of all leaves."
        )
    if audit.model.served_rounds is not None:
        lines.append(
            f"XGBoost's scikit-learn interface predicts with the first {audit.model.served_rounds} "
            f"of {audit.model.boosted.rounds} rounds (best_iteration). The file contains all "
            "rounds, so that this audit covers all of them."
        )
    if audit.sources.kind != "one":
        lines.append(f"Several sources: {audit.sources.how}.")
    lines += names_lines(audit)
    if audit.model.ranges:
        lines.append(
            "feature_infos contains the smallest and the largest training value of "
            "every column. Each extreme value belongs to a person."
        )
    return [line if isinstance(line, Finding) else Finding(line) for line in lines]


def _conditions_lines(audit: Audit) -> list[Finding]:
    """Return the conditions of the counts, and other training rows with the same file."""
    if not audit.assumes:
        return []
    if not {ONCE, SAMPLED} & {*audit.assumes}:
        conditions = f"The conditions, which leaf values do not show: {'; '.join(audit.assumes)}."
        return [Finding(conditions, "If one of them is not met, the counts are wrong.")]
    lines = [
        Finding(
            "The file cannot confirm this condition: it contains sums over rows, but no weights, "
            "no samples and no custom objective.",
            "A row of weight 2 is counted as two rows. Other weights usually lead to sums that are "
            "no whole numbers, and then no row is counted. Their sums can however be whole numbers "
            "in every leaf by chance, for example weights of 0.5 in trees of two or three leaves.",
        )
    ]
    # A common factor of all counts is a warning sign, because a weight multiplies every sum.
    counts = np.concatenate([t.n[t.counted] for t in audit.trees])
    factor = int(np.gcd.reduce(counts)) if len(counts) else 1
    if factor > 1:
        lines.append(
            Finding(
                f"All counts are multiples of {factor}: rows of weight {factor}, or gradients that "
                f"a custom objective multiplied by {factor}, would result in the same file."
            )
        )
    if SAMPLED in audit.assumes:
        totals = sorted(t.rows for t in audit.trees if t.rows is not None)
        lines.append(
            Finding(
                "The trees were grown on different rows (a tree has between "
                f"{totals[0]} and {totals[-1]} rows): other rows of the table may belong to the "
                "same leaves."
            )
        )
    if audit.model.positive_weight != 1:
        lines.append(
            Finding(
                "The counts assume that rows of class 1 had the weight "
                f"{audit.model.positive_weight:g} in every tree. The file states this weight for "
                "its last training (scale_pos_weight)."
            )
        )
    return lines


def _small_leaves(audit: Audit) -> list[Finding]:
    """Return how many leaves contain one row or few rows, of the table or of the tree's rows."""
    s = audit.summary
    sure = "under these conditions" if audit.assumes else "for certain"
    # The condition `ONCE` includes that no row was left out, so that a tree saw the complete table.
    of_table = bool(audit.assumes) and SAMPLED not in audit.assumes
    isolated, lines = s.single if of_table else s.isolated, []
    if isolated:
        lines.append(
            Finding(
                f"{many(isolated, 'leaf contains', 'leaves contain')} exactly one row {sure}: the "
                "conditions on the way to the leaf describe one person."
            )
        )
    if s.single > isolated:
        lines.append(
            Finding(
                f"{many(s.single - isolated, 'leaf contains', 'leaves contain')} {sure} "
                "exactly one of the rows on which the tree was grown.",
                "If the tree was grown on the complete table, which only --rows can confirm, the "
                "conditions on the way to the leaf describe one person.",
            )
        )
    if s.small > s.single:
        seen = "" if of_table else " of those on which the tree was grown"
        lines.append(
            Finding(
                f"{many(s.small, 'leaf has', 'leaves have')} fewer than {SMALL} rows{seen} {sure}."
            )
        )
    return lines


def _counts_line(audit: Audit) -> str:
    """Return the sentence on the leaves whose rows are counted, and on the size of the table."""
    s, rows = audit.summary, audit.rows
    counted = [t for t in audit.trees if t.counted.any()]
    if not counted:
        text = "The file determines the number of rows of no leaf for certain."
        if rows.share is not None:
            text += (
                f" Its base score is {rows.share} in lowest terms: if this is the share of class "
                f"1, the number of rows of the table is a multiple of {rows.share.denominator}."
            )
        return f"{text} {audit.hint}".strip()
    where = (
        "of the first tree" if len(counted) == 1 and counted[0].at == 0
        else f"of {len(counted)} of {len(audit.trees)} trees"
    )  # fmt: skip
    labels = "" if not s.exact else (
        ", with the number of positives in each" if s.exact == s.counted
        else f", and of {s.exact} of them how many are positive"
    )  # fmt: skip
    leaves = many(s.counted, "leaf", "leaves")
    which = "of the rows on which each tree was grown" if _of_samples(audit) else "training rows"
    text = f"{_opening(audit)} exactly how many {which} are in {leaves} {where}{labels}."
    if rows.n is not None:
        of = "" if rows.n_pos is None else f", {rows.n_pos} of them positive"
        least = "" if rows.declared else "at least "
        it = "In that case it" if audit.assumes else "It"
        text += f" {it} was trained on {least}{rows.n} rows{of} ({rows.how})."
    return text


def _opening(audit: Audit) -> str:
    """Return the beginning of the first sentence, which states the condition of its counts."""
    if not audit.assumes:
        return "The file reveals"
    first = audit.assumes[0]
    return f"If {first}, the file reveals" if first in (ONCE, SAMPLED) else (
        "Under the conditions below, the file reveals"
    )  # fmt: skip


def _of_samples(audit: Audit) -> bool:
    """Return whether some counted tree may have other rows than the training table."""
    if audit.assumes:
        return SAMPLED in audit.assumes
    return any(t.counted.any() and not t.saw_all_rows for t in audit.trees)


def _noise_line(model: ModelFile) -> str:
    """Return a sentence on the privacy claim for the counts of a random decision forest."""
    mechanism, stated_epsilon = model.parameters.get("mechanism"), model.parameters.get("epsilon")
    if mechanism is None or stated_epsilon is None:
        return (
            "The tests of its nodes were drawn without data. The file does not state whether its "
            "counts contain noise, so that no privacy claim is known."
        )
    epsilon = float(stated_epsilon)
    if not math.isfinite(epsilon):
        return "Its counts were released without noise, so that it makes no privacy claim."
    claim = f"It claims {epsilon:g}-differential privacy for one row added or removed ({mechanism})"
    if model.parameters.get("noise_from") == "seed":
        return (
            f"{claim}. The claim is void, because the noise was drawn from the seed of the tests: "
            "an attacker who tries all seeds until the tests agree can draw the same noise."
        )
    if mechanism != "published":
        return f"{claim}. The counts contain noise, so that none of them is certain."
    # The published mechanism truncates the noise of each tree towards 0, which costs ln 2 per tree.
    spent = epsilon + len(model.statistics) * math.log(2)
    return f"{claim}. Its noise is truncated toward 0, so that the true epsilon is {spent:.3g}."


def advice(audit: Audit, scrubbed: bool = False) -> list[Finding]:
    """Return recommendations, before or after a scrubbed copy was written (`scrubbed`)."""
    out = []
    present = [f.name for f in audit.fields if f.state == "present" and not f.needed]
    named = audit.model.categories
    if present and scrubbed:
        copy = (
            "Share the scrubbed copy, not this file, and read above which counts it still reveals"
        )
        out.append(
            Finding(f"{copy}, if no category in it describes a person." if named else f"{copy}.")
        )
    elif present and audit.model.library == "xgboost" and not audit.model.dropout:
        copy = f"Prediction needs none of {', '.join(present)}: share a copy written by --scrub."
        out.append(Finding(copy, f"Its predictions are the same. It lacks {LOST}."))
    elif present:
        out.append(Finding(f"Prediction needs none of {', '.join(present)}."))
    if any(t.counted.any() for t in audit.trees) and audit.model.library == "xgboost":
        share = audit.rows.share
        fixed = "a fixed base_score (0.5) instead of the label mean, "
        remedies = (
            f"{fixed if share is not None and may_be_mean(share) else ''}larger leaves "
            "(min_child_weight), rounded leaf values or noise in training"
        )
        harder = (
            f"{remedies[0].upper()}{remedies[1:]} make leaf values harder to read; "
            "fedtrees bench measures how much utility each of them costs."
        )
        out.append(Finding(harder))
    return out


def leftovers(before: Audit, after: Audit, done: Scrubbed) -> list[str]:
    """Return sentences on the effect of scrubbing and on the information that remains.

    Parameters
    ----------
    before, after : Audit
        Audits of the model and of its scrubbed copy.
    done : Scrubbed
        Result of `fedtrees.model_audit.scrub.scrub`.

    Returns
    -------
    lines : list of str
    """
    compared = (
        f"Predictions are unchanged, bit for bit, on {done.points} points that reach "
        f"{100 * done.leaves_reached:.0f}% of all leaves."
    )
    if done.not_compared:
        compared = (
            "Splits and leaf values are unchanged, bit for bit; predictions could not be compared: "
            f"{done.not_compared}."
        )
    lines = [
        f"Wrote {done.path.name} without {', '.join(XGBOOST_STATISTICS)}. {compared} Lost: {LOST}."
    ]
    if before.model.categories:
        lines.append(
            f"The copy still names categories ({names_text(before.model)}), because XGBoost codes "
            "a data frame by them. It is not safe to share if one of them describes a person: "
            "merge rare categories before the training."
        )
    left, had = after.summary, before.summary
    if left.counted:
        lines.append(
            "The copy does not hide everything. An adversary who knows eta, lambda and the number "
            "of rows N (or tries XGBoost's defaults for eta and lambda) still computes the number "
            f"of rows in {left.counted} leaves (before: {had.counted}) from leaf values alone, and "
            f"the labels in {left.exact} of "
            f"them (before: {had.exact}). {_conditions(after)} Only a defense in training hides "
            "these counts."
        )
    else:
        lines.append(
            "The leaf values of the copy no longer determine the number of rows of any leaf for "
            f"certain (before: {had.counted} leaves){_tried(after)}. They still indicate the "
            "approximate share of each label."
        )
    lines.append(
        "The predictions are the same, so that membership inference from predictions is as "
        "successful as before."
    )
    return lines


def _tried(audit: Audit) -> str:
    """Return which values the adversary was assumed to know, "" if none."""
    if audit.settings is None:
        return ""
    eta, reg_lambda = audit.settings.learning_rate, audit.settings.reg_lambda
    known = f"eta {eta:g} and lambda {reg_lambda:g}"
    if audit.rows.n is not None:
        known = f"eta {eta:g}, lambda {reg_lambda:g} and N = {audit.rows.n}"
    return f", also if {known} are known"


def _conditions(audit: Audit) -> str:
    return f"These counts are right if {'; '.join(audit.assumes)}."


def to_json(audit: Audit, attacked: AttackResult | None = None) -> dict[str, Any]:
    """Return the findings as plain JSON types. A count that is not certain is null."""
    model, settings, rows = audit.model, audit.settings, audit.rows
    return {
        "model": {
            "file": model.path.name,
            "format": model.format,
            "objective": getattr(getattr(model.forest, "objective", None), "name", None),
            "trees": len(audit.trees),
            "features": len(model.categorical),
            "rows": rows.n,
            "rows_whole": rows.declared,
            "positives": rows.n_pos,
            "rows_how": rows.how,
            "label_share": None if rows.share is None else str(rows.share),
            **{key: settings and getattr(settings, name) for key, name in SETTINGS.items()},
            "sources": {name: getattr(audit.sources, name) for name in ("kind", "clients", "how")},
        },
        "fields": [vars(f) for f in audit.fields],
        "restored": audit.restored,
        "summary": vars(audit.summary),
        "assumes": list(audit.assumes),
        "verdict": verdict(audit),
        "advice": advice(audit),
        "trees": sorted((_tree_json(model, t) for t in audit.trees), key=lambda t: t["index"]),
        "attack": None if attacked is None else _attack_json(attacked),
    }  # fmt: skip


def _tree_json(model: ModelFile, t: TreeExposure) -> dict[str, Any]:
    """Return the exposure of one tree and its leaves as plain JSON types."""
    counts = {"n": t.n, "n_pos": t.n_pos, "at_least": t.at_least, "at_most": t.at_most}
    counts_or_null = {
        name: [None if n == UNKNOWN else n for n in c.tolist()] for name, c in counts.items()
    }
    numbers = [model.number_of(t.at, leaf) for leaf in t.leaf.tolist()]
    columns = {"id": numbers, "exact": t.exact.tolist(), **counts_or_null}
    leaves = [dict(zip(columns, leaf, strict=True)) for leaf in zip(*columns.values(), strict=True)]
    attributes = ("index", "output", "source", "base_score", "how")
    return {name: getattr(t, name) for name in attributes} | {
        "whole": t.saw_all_rows,
        "leaves": leaves,
    }


def _attack_json(a: AttackResult) -> dict[str, Any]:
    names = {"known_rows": "own"}  # name in the JSON output, if it differs from the attribute
    return {
        **{names.get(name, name): value for name, value in vars(a).items()},
        "reason": None if a.reason is None else str(a.reason),
        "reason_code": None if a.reason is None else a.reason.code,
        "scores": [vars(s) for s in a.scores],
    }
