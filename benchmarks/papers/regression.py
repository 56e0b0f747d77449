"""Replicate the inversion of logistic and linear regression of Li et al. (2022).

``python -m fedtrees.benchmarks.papers.regression`` runs the suite, prints the tables, and draws the
frontier of precision to `RUN/precision.svg`.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, Table, percent, run_study
from fedtrees.report import static_figure, style
from fedtrees.report.results import load_rows

#: Li et al. 2022, Tables 2 and 3: table, data, columns of the attacker, of the victim, fake
#: columns, rows, error, known data ratio. One row that Table 3 lists under residential building
#: belongs to iris (1 + 3 columns).
VERTICAL = (
    (2, "motor temperature", 9, 2, 0, 9, 4.3e-4, 0.0),
    (2, "motor temperature", 7, 4, 0, 7, 8.2e-5, 0.107),
    (2, "motor temperature", 6, 5, 2, 8, 2.3e-3, 0.15),
    (2, "motor temperature", 4, 7, 3, 7, 2.2e-4, 0.306),
    (2, "red wine", 8, 3, 0, 8, 3.6e-6, 0.041),
    (2, "red wine", 6, 5, 3, 9, 4.2e-4, 0.133),
    (2, "red wine", 5, 6, 2, 7, 3.1e-3, 0.238),
    (2, "residential building", 101, 6, 3, 76, 1.9e-4, 0.022),
    (2, "residential building", 72, 35, 0, 67, 1.8e-6, 0.239),
    (2, "residential building", 55, 52, 0, 55, 8.3e-5, 0.446),
    (3, "breast cancer", 27, 3, 0, 27, 2.4e-4, 0.012),
    (3, "breast cancer", 20, 10, 0, 20, 8.4e-5, 0.18),
    (3, "breast cancer", 20, 10, 3, 23, 2.9e-4, 0.157),
    (3, "breast cancer", 16, 14, 0, 16, 1.6e-3, 0.348),
    (3, "breast cancer", 14, 16, 3, 17, 8.4e-4, 0.386),
    (3, "iris", 3, 1, 3, 6, 1.6e-12, 0.0),
    (3, "iris", 3, 1, 0, 3, 4.7e-14, 0.0),
    (3, "iris", 2, 2, 0, 2, 2e-4, 0.0),
    (3, "iris", 2, 2, 1, 3, 5.2e-5, 0.0),
    (3, "iris (printed under residential building)", 1, 3, 2, 3, 3.5e-5, 0.111),
    (3, "residential building", 103, 4, 1, 76, 2.7e-4, 0.01),
    (3, "residential building", 97, 10, 0, 69, 5.7e-4, 0.052),
    (3, "residential building", 92, 15, 0, 67, 1.9e-4, 0.091),
)
#: Table 4: data, columns, victim's rows, attacker's rows, error, known data ratio.
HORIZONTAL = (
    ("fish", 5, 5, 27, 2.8e-10, 0.4),
    ("motor temperature", 11, 11, 60, 1.4e-9, 0.454),
    ("red wine", 11, 4, 120, 5.2e-12, 0.136),
    ("house", 6, 3, 24, 1e-12, 0.166),
)


@dataclass(frozen=True)
class Rate:
    """A printed known data ratio, and the result of the formula."""

    table: int
    data: str
    shape: str
    error: float
    printed: float
    formula: float


def printed_rates() -> list[Rate]:
    """Return all 27 ratios: (n - 1)(n - 2) / (2 m n) for columns and (m - 1) / (2 n) for rows."""
    rates = []
    for table, data, attacker_size, n, fake, m, error, rate in VERTICAL:
        formula = (n - 1) * (n - 2) / (2 * m * n)
        rates.append(Rate(table, data, f"{attacker_size}+{fake}, {n}, {m}", error, rate, formula))
    for data, n, m, attacker_size, error, rate in HORIZONTAL:
        rates.append(Rate(4, data, f"{n}, {m}, {attacker_size}", error, rate, (m - 1) / (2 * n)))
    return rates


def rate_table() -> Table:
    """Return one line per printed ratio."""
    header = ("table", "data", "shape", "error, printed", "known, printed", "by formula")
    lines = [
        [str(r.table), r.data, r.shape, f"{r.error:.1e}", f"{r.printed:.3f}", f"{r.formula:.3f}"]
        for r in printed_rates()
    ]
    return "Li et al. 2022, Tables 2 to 4.", header, lines


def inversion_table(rows: Any) -> Table:
    """Return one line per protocol, defense, threat and attack: means over seeds."""
    header = ("data", "protocol", "defense", "threat", "attack", "AUC", "entries", "blind",
              "close", "blind close", "rows", "relative error", "CPU s")  # fmt: skip
    train = ["dataset", "partition", "protocol", "protocol_params", "defense_spec"]
    auc = rows[(rows["stage"] == "train") & rows["metric"].isin(["auc", "r2"])]
    utility = {key: part["value"].mean() for key, part in auc.groupby(train)}
    done = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    lines = []
    for key, part in done.groupby([*train, "threat", "attack_spec"], sort=False):
        data, _, protocol, params, defense, threat, attack = key
        group_of_metric = dict(iter(part.groupby("metric")))
        shares = [percent(group_of_metric["entries"][c]) for c in ("value", "blind")]
        shares += [percent(group_of_metric["entries_close"][c]) for c in ("value", "blind")]
        shares.append(percent(group_of_metric["exact_entry_rows"]["value"]))
        error = f"{mean(group_of_metric['relative_error']['value']):.1e}"
        auc_mean = utility.get(key[:5])
        lines.append(
            [
                data,
                f"{protocol}[{params}]" if params else protocol,
                defense,
                threat,
                attack,
                "-" if auc_mean is None else f"{auc_mean:.3f}",
                *shares,
                error,
                f"{mean(group_of_metric['cpu_seconds']['value']):.1f}",
            ]
        )
    return TITLE, header, lines


def draw(rows: Any, path: Path) -> Path:
    """Draw the inferred values over the precision of opened gradients, as means over seeds."""
    import matplotlib
    from matplotlib.figure import Figure

    done = rows[(rows["stage"] == "attack") & (rows["defense"] == "decrypted-precision")]
    lines = (
        ("within a millionth", "entries", "value", style.COLOURS[0], "-"),
        ("close", "entries_close", "value", style.COLOURS[1], "-"),
        ("close, blind", "entries_close", "blind", style.COLOURS[1], "--"),
    )
    with matplotlib.rc_context(static_figure.RC):
        figure = Figure(figsize=(static_figure.COLUMN, 2.2), layout="constrained")
        ax = figure.subplots()
        for name, metric, column, colour, dash in lines:
            part = done[done["metric"] == metric]
            places = part["defense_params"].str.removeprefix("bits=").astype(int)
            statistics = 100 * part.groupby(places)[column].agg(["mean", "std"])
            spread = (
                {"yerr": statistics["std"], "marker": "o", "ms": 2.6} if column == "value" else {}
            )
            ax.errorbar(
                statistics.index,
                statistics["mean"],
                color=colour,
                ls=dash,
                lw=0.9,
                label=name,
                **spread,
            )
        ax.set_xlabel("binary places of opened gradients")
        ax.set_ylabel("others' values read, percent")
        ax.set_xticks(sorted(set(places)))
        ax.set_ylim(0, 104)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="center left")
    return static_figure.save(figure, path)


if __name__ == "__main__":
    folder = run_study("regression", lambda rows: [rate_table(), inversion_table(rows)])
    draw(load_rows(folder), folder / "precision.svg")
