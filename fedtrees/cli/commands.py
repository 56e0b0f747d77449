"""Declare every command: its place, its function, its summary and two examples.

The module also contains the names that commands had in the previous release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import typer

from fedtrees.cli import (
    audit,
    bench,
    capture,
    explain,
    federate,
    leaderboard,
    paper,
    privacy,
    recommend,
    registry,
    results,
    tables,
    train,
)
from fedtrees.cli.help import HelpCommand, HelpGroup

_START, _RESULTS, _TOPICS = "Measure and decide", "Read results", "More commands by topic"
_CONTEXT = {"help_option_names": ["-h", "--help"]}

#: Command of the previous release -> its present name. They are removed in the next release.
OLD_COMMANDS = {
    "advise": "recommend",
    "inspect": "data inspect",
    "fetch": "data fetch",
    "train": "model train",
    "audit": "model audit",
    "compare": "results compare",
    "table": "results table",
    "submit": "leaderboard submit",
    "leaderboard": "leaderboard build",
    "measure": "privacy measure",
    "bound": "privacy bound",
    "new": "plugin new",
    "check": "plugin check",
    "capture": "capture record",
    "attack": "capture attack",
    "diff": "capture diff",
    "federate": "federation run",
    "site": "federation site",
}


class Root(HelpGroup):
    """The command `fedtrees`, which also accepts the commands of the previous release."""

    old_commands: ClassVar[dict[str, str]] = OLD_COMMANDS


@dataclass(frozen=True)
class Entry:
    """A command.

    Attributes
    ----------
    name : str
        Name, after the name of its group: ``"bench"`` or ``"privacy measure"``.
    function : callable
        Function whose parameters are the options.
    summary : str
        Line in the list of commands, which has 80 columns.
    examples : tuple of (str, str)
        Purpose and command, each in a line of at most 80 columns.
    panel : str
        Panel of the list of commands, for a command without a group.
    """

    name: str
    function: Callable[..., Any]
    summary: str
    examples: tuple[tuple[str, str], ...]
    panel: str | None = None

    @property
    def epilog(self) -> str:
        """The examples as text, with lines that begin with a number sign and lines to type."""
        return "\n".join(f"# {purpose}\n{command}" for purpose, command in self.examples)


#: Group -> its summary.
GROUPS = {
    "results": "Tables for papers, and differences between runs.",
    "model": "Train one model, and show what a model file reveals.",
    "data": "Inspect your table, and download public ones.",
    "privacy": "Measure epsilon, and compute ceilings of attacks.",
    "plugin": "Write a protocol, defense or attack, and check it.",
    "capture": "Record the messages of other frameworks, and attack them.",
    "federation": "Train between parties on several machines.",
    "leaderboard": "Submit a run, and check submissions.",
}

# The modules that a command needs are imported when it runs, so that the help appears at once.
COMMANDS: tuple[Entry, ...] = (
    Entry(
        "bench",
        bench.bench,
        "Train with and without defenses, attack, and print a verdict.",
        (
            ("The default benchmark on a bundled table", "fedtrees bench"),
            (
                "Two budgets of a defense on your table, for five seeds",
                "fedtrees bench --csv patients.csv --target outcome --seeds 5 \\\n"
                "    -d 'laplace-hist[epsilon=1,4]'",
            ),
        ),
        _START,
    ),
    Entry(
        "recommend",
        recommend.recommend,
        "Find a protocol and a defense that meet your limits.",
        (
            (
                "At most 1% of the rows reconstructed, and an AUC of 0.8, in ten minutes",
                "fedtrees recommend --csv patients.csv --target outcome --min-auc 0.8",
            ),
            (
                "Parties that have different columns of the same patients",
                "fedtrees recommend --data breast-cancer --layout vertical --minutes 20",
            ),
        ),
        _START,
    ),
    Entry(
        "explain",
        explain.explain,
        "Show which party receives which message.",
        (
            ("Messages of a protocol, and the attacks that apply", "fedtrees explain fedtree-hist"),
            (
                "With a defense, and with the reasons why other attacks do not apply",
                "fedtrees explain -p fedtree-hist -d secure-sum --details",
            ),
        ),
        _START,
    ),
    Entry(
        "list",
        registry.list_,
        "List protocols, defenses, attacks, tables and suites.",
        (
            ("All defenses with their parameters", "fedtrees list defenses"),
            ("The attacks, as JSON for a program", "fedtrees list attacks --format json"),
        ),
        _START,
    ),
    Entry(
        "doctor",
        registry.doctor,
        "Check the installation.",
        (
            ("Versions, kernels, and restrictions of attacks", "fedtrees doctor"),
            ("The same facts for a bug report", "fedtrees doctor --format json"),
        ),
        _START,
    ),
    Entry(
        "show",
        results.show,
        "Print the verdict of a run, and its tables.",
        (
            ("The verdict, followed by tables", "fedtrees show runs/quick"),
            (
                "With the attacks that did not apply, and why",
                "fedtrees show runs/quick --skipped",
            ),
        ),
        _RESULTS,
    ),
    Entry(
        "plot",
        paper.plot,
        "Draw utility against leakage.",
        (
            ("An interactive page in the run folder", "fedtrees plot runs/quick"),
            (
                "One column of a paper, for one adversary and some defenses",
                "fedtrees plot runs/quick -o f.pdf --width column --threat server -d split-only",
            ),
        ),
        _RESULTS,
    ),
    Entry(
        "report",
        results.report,
        "Write the HTML report of a run again.",
        (
            ("The report as report.html in the run folder", "fedtrees report runs/quick"),
            (
                "An advantage of 10% over a blind guess still counts as no leak",
                "fedtrees report runs/quick --margin 0.1",
            ),
        ),
        _RESULTS,
    ),
    Entry(
        "results table",
        paper.table,
        "Write utility and leakage as a LaTeX table.",
        (
            ("A Markdown table in the terminal", "fedtrees results table runs/quick"),
            (
                "A LaTeX table with another name of the table",
                "fedtrees results table runs/quick -o t.tex --label breast-cancer=WDBC",
            ),
        ),
    ),
    Entry(
        "results compare",
        results.compare,
        "Show the differences between runs.",
        (
            ("Two runs, paired by cell and seed", "fedtrees results compare runs/a runs/b"),
            (
                "Several runs in order, each with the one before",
                "fedtrees results compare runs/a runs/b runs/c --format json",
            ),
        ),
    ),
    Entry(
        "model train",
        train.train,
        "Train one federation and save its model.",
        (
            (
                "Three clients, and a model that XGBoost can read",
                "fedtrees model train --data breast-cancer -o model.json",
            ),
            (
                "With a defense, and with every message in a file",
                "fedtrees model train -d split-only --transcript messages.npz",
            ),
        ),
    ),
    Entry(
        "model audit",
        audit.audit,
        "Show what a model file reveals about its training rows.",
        (
            (
                "Findings as a page for the data protection officer",
                "fedtrees model audit model.json --report audit.html",
            ),
            (
                "A copy without the statistics that prediction does not need",
                "fedtrees model audit model.json --scrub published.json",
            ),
        ),
    ),
    Entry(
        "data inspect",
        tables.inspect,
        "Show how the columns of a table are interpreted.",
        (
            ("Types, missing values and ids", "fedtrees data inspect patients.csv"),
            (
                "A table with semicolons and decimal commas",
                "fedtrees data inspect patients.csv --sep ';' --decimal ,",
            ),
        ),
    ),
    Entry(
        "data fetch",
        tables.fetch,
        "Download a public table and verify its checksum.",
        (
            ("A table that is not bundled", "fedtrees data fetch stroke"),
            ("Into a folder of your choice", "fedtrees data fetch adult --data-dir tables"),
        ),
    ),
    Entry(
        "privacy measure",
        privacy.measure,
        "Measure a lower bound on epsilon with canaries.",
        (
            (
                "A protocol that is differentially private itself",
                "fedtrees privacy measure -p 'dp-gbdt[epsilon=1]'",
            ),
            (
                "A defense, with more trainings than by default",
                "fedtrees privacy measure -p fedtree-hist \\\n"
                "    -d 'laplace-hist[epsilon=4]' --runs 2000",
            ),
        ),
    ),
    Entry(
        "privacy bound",
        privacy.bound,
        "Compute the score that no attack can exceed.",
        (
            (
                "The ceiling of a protocol, and of the same with a defense",
                "fedtrees privacy bound -p fedtree-hist -d none -d split-only",
            ),
            (
                "How close an attack comes to the ceiling",
                "fedtrees privacy bound -p fedtree-hist -a timberstrike",
            ),
        ),
    ),
    Entry(
        "plugin new",
        registry.new,
        "Write a working example of a plug-in.",
        (
            ("A defense in my_defense.py", "fedtrees plugin new defense my-defense"),
            ("An attack in a file of your choice", "fedtrees plugin new attack mine -o idea.py"),
        ),
    ),
    Entry(
        "plugin check",
        registry.check,
        "Check that plug-ins follow the rules.",
        (
            ("A file of yours", "fedtrees plugin check my_defense.py"),
            ("Names of built-in ones", "fedtrees plugin check timberstrike split-only"),
        ),
    ),
    Entry(
        "capture record",
        capture.capture,
        "Record the messages of a real training.",
        (
            (
                "XGBoost's federated server, which listens on port 9091",
                "fedtrees capture record xgboost --to 9091 -o run.capture",
            ),
            (
                "A job of NVFlare",
                "fedtrees capture record nvflare --job jobs/xgb -o run.capture",
            ),
        ),
    ),
    Entry(
        "capture attack",
        capture.attack,
        "Show what a recorded training reveals to one party.",
        (
            ("What an eavesdropper learns", "fedtrees capture attack run.capture"),
            (
                "What the server learns, compared with the rows of a client",
                "fedtrees capture attack run.capture --as server --truth client-0.csv",
            ),
        ),
    ),
    Entry(
        "capture diff",
        capture.diff,
        "Compare the messages of two recorded trainings.",
        (
            ("Two recordings", "fedtrees capture diff before.capture after.capture"),
            (
                "A recording with our protocol on the same rows",
                "fedtrees capture diff run.capture -p nvflare-hist --truth client-0.csv",
            ),
        ),
    ),
    Entry(
        "federation new",
        registry.new_federation,
        "Write an example federation of three sites.",
        (
            ("A folder with agreement, tables and settings", "fedtrees federation new trial"),
            ("In another folder", "fedtrees federation new trial -o examples/trial"),
        ),
    ),
    Entry(
        "federation run",
        federate.federate,
        "Train between the parties of a federation.",
        (
            (
                "Check the agreement, and print the hash that sites allow",
                "fedtrees federation run federation.toml --dry-run",
            ),
            (
                "A trial on this machine, one process per site",
                "fedtrees federation run trial/federation.toml --poc --sites trial/sites -o run",
            ),
        ),
    ),
    Entry(
        "federation site",
        federate.site,
        "Configure the table and the federations of a site.",
        (
            (
                "Allow one run of a federation, given by its hash",
                "fedtrees federation site --csv a.csv --allow HASH --kit kit -o logs",
            ),
            (
                "A site of a trial on one machine",
                "fedtrees federation site --csv a.csv --allow HASH --to sites/a.toml -o logs",
            ),
        ),
    ),
    Entry(
        "leaderboard submit",
        leaderboard.submit,
        "Write a finished run as a bundle for a leaderboard.",
        (
            (
                "The files that others need to check a run",
                "fedtrees leaderboard submit runs/quick -o bundles/mine --by 'Ada Example'",
            ),
            (
                "A run on a table in a folder of yours",
                "fedtrees leaderboard submit runs/a -o bundles/a --by Ada --data-dir tables",
            ),
        ),
    ),
    Entry(
        "leaderboard build",
        leaderboard.leaderboard,
        "Check submissions and write the page.",
        (
            ("Compute one view of each submission again", "fedtrees leaderboard build bundles"),
            (
                "Check without computing, and write the page elsewhere",
                "fedtrees leaderboard build bundles --recompute 0 -o public",
            ),
        ),
    ),
)


def build_app() -> typer.Typer:
    """Return the command line application with all groups and commands."""
    settings: dict[str, Any] = {
        "add_completion": False,
        "pretty_exceptions_enable": False,
        "rich_markup_mode": None,
        "context_settings": _CONTEXT,
    }
    app = typer.Typer(
        name="fedtrees",
        help="What does a federated tree model leak, and what does a defense cost?",
        epilog="# Start here\nfedtrees bench\n"
        "# Options and examples of a command\nfedtrees bench -h",
        cls=Root,
        **settings,
    )
    parents = {"": app}
    for entry in COMMANDS:
        group, _, name = entry.name.rpartition(" ")
        if group not in parents:
            parents[group] = typer.Typer(cls=HelpGroup, **settings)
            app.add_typer(parents[group], name=group, help=GROUPS[group], rich_help_panel=_TOPICS)
        parents[group].command(
            name,
            cls=HelpCommand,
            short_help=entry.summary,
            epilog=entry.epilog,
            rich_help_panel=entry.panel,
            context_settings=_CONTEXT,
        )(entry.function)
    return app
