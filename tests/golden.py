"""Store results of the program, and compare them with those of another version.

``python tests/golden.py freeze FOLDER PART...`` runs the parts and stores their results as JSON in
the folder. ``python tests/golden.py check FOLDER PART...`` runs them again and prints every
difference. The exit code of `check` is 1 if there is one. A refactoring must keep all numbers.

Parts: `engine` (digests of the transcripts, models and predictions of every protocol with every
defense that fits), `attacks` (scores of all attacks on all protocols), `bench` (results of small
runs), `report` (texts and figures of stored runs) and `cli` (answers of the other commands, and
error messages). ``engine:secureboost`` or ``attacks:secureboost`` restricts a part to one protocol.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from result_rows import read_rows

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "fedtrees.cli.main"]
ENVIRONMENT = os.environ | {"COLUMNS": "120", "NUMBA_NUM_THREADS": "1", "NO_COLOR": "1"}
#: Columns of rows.csv whose values depend on the machine, the time or the version.
UNSTABLE = ("run", "seconds", "version")
#: Defenses on which the attacks are compared, in addition to "none".
DEFENSES = ("split-only", "hist-rounding", "leaf-rounding", "laplace-hist", "min-bin", "id-lmid")
RUNS = {
    "histograms": "-p fedtree-hist[trees=3,max_depth=3] -d split-only,hist-rounding[step=0.1],"
    "laplace-hist[epsilon=16],secure-sum --data breast-cancer",
    "vertical": "-p secureboost[trees=3,max_depth=3] -d none,id-lmid[xi=0.3],lp-mst[epsilon=1] "
    "--data breast-cancer --threat passive,active",
    "numeric": "-p fedtree-hist[trees=3,max_depth=3] -d none,split-only --data diabetes",
    "trees": "-p flower-bagging[trees=3],flower-cyclic[trees=3] -d none,leaf-rounding[decimals=2] "
    "--data breast-cancer",
    "forests": "-p forest-hist[trees=3] -d none --data breast-cancer",
}
WRONG = (
    "bench -d split-onyl",
    "bench -p fedtree -d split-only",
    "bench -p fedtree-hist[trees=0]",
    "bench -p fedtree-hist[tree=3]",
    "bench -d laplace-hist[epsilon=-1]",
    "bench --data unknown",
    "bench --seeds x",
    "bench --threat nobody",
    "bench -a nothing",
    "bench --csv missing.csv",
    "bench -p secureboost -d paillier[mode=ideal]",
    "bench -p secureboost --clients 0",
    "show missing",
    "plot missing",
    "audit missing.json",
    "inspect missing.csv",
    "train -p fedtree-hist --data unknown",
    "explain unknown",
    "list unknown",
    "compare missing missing",
    "frobnicate",
)


def run_command(arguments: list[str], cwd: Path | None = None) -> str:
    """Return the exit code and everything that a command prints, without paths and durations."""
    process = subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, cwd=cwd or ROOT, capture_output=True, text=True
    )
    output = without_paths(process.stdout) + without_paths(process.stderr)
    return f"exit code {process.returncode}\n{output}"


def without_paths(text: str) -> str:
    """Return a text without temporary folders, the folder of the project, durations and hashes."""
    text = re.sub(r"/tmp/[\w./-]*", "TMP", text.replace(str(ROOT), "ROOT"))
    return re.sub(r"\d+(\.\d+)? (s|min|CPU s)\b", "N s", text)


def digest_rows(folder: Path) -> dict[str, str]:
    """Return one entry for each result of a run, with everything but machine and time."""
    entries: dict[str, str] = {}
    for row in read_rows(folder):
        if row["metric"].startswith("cpu_seconds"):
            continue
        place = {key: text for key, text in row.items() if key not in UNSTABLE and text}
        value = {key: place.pop(key) for key in list(place) if key in VALUES}
        entries[json.dumps(place, sort_keys=True)] = json.dumps(value, sort_keys=True)
    return entries


#: Columns of rows.csv that contain results; the other ones identify the run.
VALUES = frozenset(
    [
        "status",
        "state_code",
        "reason_code",
        "reason_args",
        "reason",
        "blind_guess",
        "value",
        "n",
        "error",
        "certain",
        "blind",
        "advantage",
        "population",
        "beyond",
        "ceiling",
        "claimed",
        "spent",
        "measured",
        "bytes_up",
        "bytes_down",
        "rounds",
    ]
)


def engine(only: str) -> dict[str, str]:
    """Return digests of transcripts, models and predictions."""
    from digests import EXACT, digests

    return digests([only] if only else EXACT, ())


def attacks(only: str) -> dict[str, str]:
    """Return the scores of all attacks on all protocols, a few defenses, on a table of 60 rows."""
    import campaign_of_attacks as campaign

    for kind in campaign.TABLES:
        campaign.register.dataset(f"campaign-{kind}")(
            lambda *_, kind=kind, **__: campaign.table_of(kind)
        )
    fitting = campaign.fitting
    campaign.fitting = lambda protocol: [  # type: ignore[assignment]
        text for text in fitting(protocol) if text.partition("[")[0] in ("none", *DEFENSES)
    ]
    entries: dict[str, str] = {}
    for protocol in [only] if only else campaign.trainable():
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            text = campaign.suite_of(protocol, "binary", 0, campaign.SECONDS)
            campaign.run(campaign.Suite.parse(text, "campaign"), folder)
            entries |= digest_rows(folder)
        print(protocol, len(entries), file=sys.stderr, flush=True)
    return entries


def bench(only: str) -> dict[str, str]:
    """Return the results of small runs."""
    entries: dict[str, str] = {}
    for name, options in RUNS.items():
        if only and name != only:
            continue
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            text = run_command(
                ["bench", *options.split(), "--seeds", "1", "-j", "1", "--out", str(folder)]
            )
            entries |= {f"{name} {key}": v for key, v in digest_rows(folder).items()}
            entries[f"text {name}"] = text
    return entries


def report(only: str) -> dict[str, str]:
    """Return texts and figures of the stored submissions."""
    entries: dict[str, str] = {}
    for run in sorted((ROOT / "benchmarks/leaderboard").iterdir()):
        if not run.is_dir() or (only and run.name != only):
            continue
        entries[f"text show {run.name}"] = run_command(["show", str(run)])
        entries[f"show {run.name}"] = run_command(["show", str(run), "--format", "json"])
        entries[f"text compare {run.name}"] = run_command(["compare", str(run), str(run)])
        with TemporaryDirectory() as temporary:
            for suffix in ("tex", "md", "csv"):
                path = Path(temporary) / f"table.{suffix}"
                run_command(["table", str(run), "--out", str(path)])
                entries[f"table {run.name} {suffix}"] = path.read_text()
            for suffix in ("svg", "html"):
                path = Path(temporary) / f"figure.{suffix}"
                entries[f"text plot {run.name} {suffix}"] = run_command(
                    ["plot", str(run), "--out", str(path)]
                )
                content = path.read_text()
                entries[f"figure {run.name} {suffix}"] = (
                    content if suffix == "svg" else sha256(content.encode()).hexdigest()
                )
    return entries


def cli(only: str) -> dict[str, str]:
    """Return the answers of commands that do not run a federation, and error messages."""
    answers = dict(commands())
    return {key: run_command(command) for key, command in answers.items() if only in key}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of every command that `cli` runs."""
    kinds = ("protocols", "defenses", "attacks", "metrics", "datasets", "behaviours", "partitions")
    for kind in kinds:
        yield f"list {kind}", ["list", kind, "--format", "json"]
    for protocol in ("fedtree-hist", "secureboost", "flower-bagging", "forest-hist"):
        yield f"explain {protocol}", ["explain", protocol, "--format", "json"]
    for model in sorted((ROOT / "tests/audit/models").glob("*.json")):
        yield f"audit {model.name}", ["audit", str(model), "--format", "json"]
    for table in sorted((ROOT / "tests/data").glob("*.csv")):
        yield f"inspect {table.name}", ["inspect", str(table), "--format", "json"]
    for defense in ("split-only", "laplace-hist[epsilon=4]", "min-bin"):
        yield (
            f"dry run {defense}",
            ["bench", "-d", defense, "--dry-run", "--format", "json", "--out", "/tmp/none"],
        )
    for text in WRONG:
        yield f"text {text}", [*text.split(), *(["--out", "/tmp/x"] if "bench" in text else [])]


PARTS = {"engine": engine, "attacks": attacks, "bench": bench, "report": report, "cli": cli}


def differences(before: dict[str, str], after: dict[str, str], some: bool) -> Iterator[str]:
    """Yield a text for every entry that differs. With `some`, entries may be missing."""
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            if not some:
                yield f"MISSING {key}"
        elif key not in before:
            yield f"NEW {key}"
        elif before[key] != after[key]:
            lines = difflib.unified_diff(
                before[key].splitlines(), after[key].splitlines(), "before", "after", "", "", 0, ""
            )
            yield f"DIFFERENT {key}\n" + "\n".join(
                f"    {line[:300]}" for line in list(lines)[2:40]
            )


def main() -> None:
    """Freeze or check the parts that are named."""
    action, folder, *parts = sys.argv[1:]
    n_differences = 0
    for text in parts or PARTS:
        part, _, only = text.partition(":")
        entries = PARTS[part](only)
        path = Path(folder) / f"{part}.json"
        stored = json.loads(path.read_text()) if path.exists() else {}
        if action == "freeze":
            path.write_text(json.dumps(stored | entries if only else entries, indent=0))
            print(f"{part}: {len(entries)} entries stored")
            continue
        for line in differences(stored, entries, bool(only)):
            n_differences += 1
            print(line)
        print(f"{text}: {len(entries)} entries compared", flush=True)
    print(f"{n_differences} differences")
    sys.exit(action == "check" and n_differences > 0)


if __name__ == "__main__":
    main()
