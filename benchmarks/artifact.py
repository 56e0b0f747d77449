"""Check the claims of ``ARTIFACT-APPENDIX.md`` by running their commands.

``python -m fedtrees.benchmarks.artifact [NAME ...]`` runs the named claims, or all of them, in a
clone. It prints one line per claim, pass or fail. The exit code is 1 if a claim fails. ``--list``
prints the table of claims of the appendix instead.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from fedtrees.benchmarks.papers.tables import markdown
from fedtrees.report.results import load_rows

# Function of the standard output of a command and of its run folder.
Read = Callable[[str, Path], float]

HEADER = ("name", "claim", "command", "expected", "minutes, at most")


@dataclass(frozen=True)
class Claim:
    """One claim of the appendix.

    Attributes
    ----------
    text : str
        The claim in one sentence.
    command : str
        Command line in a clone. ``RUN`` is replaced by a temporary folder.
    figures : mapping of str to callable
        Functions that read the measured figures from the output of the command.
    expected : mapping of str to tuple of float
        Expected value and tolerance of each figure.
    minutes : float
        Upper limit of the duration, on two busy cores.
    """

    text: str
    command: str
    figures: Mapping[str, Read]
    expected: Mapping[str, tuple[float, float]]
    minutes: float

    def run(self) -> tuple[bool, str]:
        """Run the command and return whether the claim is confirmed, with the measured figures."""
        with TemporaryDirectory() as folder:
            run = Path(folder, "run")
            words = [str(run) if w == "RUN" else w for w in shlex.split(self.command)]
            # Commands run with the interpreter of this process, so that no other installation is
            # used.
            python = {"python": [], "pytest": ["-m", "pytest"], "fedtrees": ["-m", _CLI]}
            command = [sys.executable, *python[words[0]], *words[1:]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error_text = (done.stderr or done.stdout)[-300:].strip()
                return False, f"exit code {done.returncode}: {error_text}"
            measured = {name: read(done.stdout, run) for name, read in self.figures.items()}
        pairs = [(name, value, *self.expected[name]) for name, value in measured.items()]
        descriptions = [
            f"{name} {value:.3f} (expected {x:g} ± {tolerance:g})"
            for name, value, x, tolerance in pairs
        ]
        confirmed = all(abs(value - x) <= tolerance for _, value, x, tolerance in pairs)
        return confirmed, "; ".join(descriptions) or "exit code 0"


_CLI = "fedtrees.cli.main"


def _says(text: str) -> Read:
    """Return a reader that yields 1 if the output contains a text, otherwise 0."""
    return lambda out, _: float(text in out)


def _mean(metric: str, threat: str, defense: str) -> Read:
    """Return a reader that yields the mean over seeds of the strongest attack per seed."""

    def read(_: str, run: Path) -> float:
        rows = load_rows(run)
        scores = rows[(rows["stage"] == "attack") & (rows["metric"] == metric)]
        selected = scores[(scores["threat"] == threat) & (scores["defense_spec"] == defense)]
        return float(selected.groupby("seed")["value"].max().mean())

    return read


_ASKER = "active[queries=2000,answers=leaf-ids]"
CLAIMS = {
    "same-model": Claim(
        "split-only changes no prediction and hides no count of the first tree",
        "python docs/tutorials/first_bench.py",
        {"same predictions": _says("same predictions: True"),
         "all counts exact": _says("split-only  leaves of the first tree with exact class counts: "
                                   "100%")},
        {"same predictions": (1, 0), "all counts exact": (1, 0)},
        1,
    ),
    "audit": Claim(
        "a bagged model's file tells how many rows there were; a scrubbed copy tells a stranger "
        "nothing",
        "python docs/tutorials/first_audit.py",
        {"rows told": _says("as many as there are: True"),
         "nothing left": _says("stranger: 0 leaves")},
        {"rows told": (1, 0), "nothing left": (1, 0)},
        1,
    ),
    "recipe": Claim(
        "the recipe of the docs is what its stored run computes",
        "pytest -q -n 0 tests/bench/test_recipes.py",
        {}, {}, 1,
    ),
    "leaderboard": Claim(
        "trainings, blind guesses and attacks of our submissions come out as submitted, one view "
        "of each drawn afresh; scores of attacks within 0.05",
        "fedtrees leaderboard build benchmarks/leaderboard --recompute 1 -o RUN",
        {}, {}, 6,
    ),
    "numeric-target": Claim(
        "a server of histograms rebuilds rows with a numeric target; min-bin ends it",
        "fedtrees bench --data diabetes-regression -p 'nvflare-hist[trees=10,max_depth=4]' "
        "-d min-bin -a timberstrike --threat server --seeds 5,6,7 --output RUN",
        {"undefended": _mean("exact_rows", "server", "none"),
         "min-bin": _mean("exact_rows", "server", "min-bin")},
        {"undefended": (0.88, 0.06), "min-bin": (0, 0.02)},
        6,
    ),
    "queries": Claim(
        "an endpoint's answers tell all thresholds of others; a limit of 25 records leaves few",
        "fedtrees bench --data breast-cancer --clients 2 --partition 'shares[active=0.34]' "
        "-p 'secureboost[trees=5,max_depth=3]' -d 'query-limit[records=25]' "
        f"--threat '{_ASKER}' -a threshold-queries --seeds 5 --output RUN",
        {"undefended": _mean("thresholds", _ASKER, "none"),
         "limited": _mean("thresholds", _ASKER, "query-limit[records=25]")},
        {"undefended": (1, 0.01), "limited": (0.06, 0.06)},
        4,
    ),
}  # fmt: skip


def table() -> str:
    """Return the claims as a Markdown table."""
    lines = []
    for name, c in CLAIMS.items():
        expected = [f"{k} {v:g} ± {t:g}" for k, (v, t) in c.expected.items()]
        expectation = "; ".join(expected) or "exit code 0"
        lines.append([f"`{name}`", c.text, f"`{c.command}`", expectation, f"{c.minutes:g}"])
    return markdown(HEADER, lines)


def main() -> int:
    """Run claims and print the result of each."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.artifact")
    parser.add_argument("names", nargs="*", choices=[[], *CLAIMS])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print(table())
        return 0
    failed = 0
    for name in options.names or CLAIMS:
        begun = monotonic()
        confirmed, description = CLAIMS[name].run()
        failed += not confirmed
        minutes = (monotonic() - begun) / 60
        print(
            f"{'pass' if confirmed else 'FAIL'}  {name:16} {minutes:4.1f} min  {description}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
