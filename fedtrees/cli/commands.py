"""Declare every command: its place, its function and its summary.

The docstring of the function describes the command and its options, and contains two examples. The
module also contains the names that commands had in the previous release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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
from fedtrees.cli.options import Documentation, add_descriptions, read_docstring

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
    panel : str
        Panel of the list of commands, for a command without a group.
    """

    name: str
    function: Callable[..., Any]
    summary: str
    panel: str | None = None

    @cached_property
    def documentation(self) -> Documentation:
        """The docstring of the function."""
        return read_docstring(self.function)

    @property
    def epilog(self) -> str:
        """The examples as text, with lines that begin with a number sign and lines to type."""
        examples = self.documentation.examples
        return "\n".join(f"# {purpose}\n{command}" for purpose, command in examples)


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
        _START,
    ),
    Entry(
        "recommend",
        recommend.recommend,
        "Find a protocol and a defense that meet your limits.",
        _START,
    ),
    Entry("explain", explain.explain, "Show which party receives which message.", _START),
    Entry("list", registry.list_, "List protocols, defenses, attacks, tables and suites.", _START),
    Entry("doctor", registry.doctor, "Check the installation.", _START),
    Entry("show", results.show, "Print the verdict of a run, and its tables.", _RESULTS),
    Entry("plot", paper.plot, "Draw utility against leakage.", _RESULTS),
    Entry("report", results.report, "Write the HTML report of a run again.", _RESULTS),
    Entry("results table", paper.table, "Write utility and leakage as a LaTeX table."),
    Entry("results compare", results.compare, "Show the differences between runs."),
    Entry("model train", train.train, "Train one federation and save its model."),
    Entry("model audit", audit.audit, "Show what a model file reveals about its training rows."),
    Entry("data inspect", tables.inspect, "Show how the columns of a table are interpreted."),
    Entry("data fetch", tables.fetch, "Download a public table and verify its checksum."),
    Entry("privacy measure", privacy.measure, "Measure a lower bound on epsilon with canaries."),
    Entry("privacy bound", privacy.bound, "Compute the score that no attack can exceed."),
    Entry("plugin new", registry.new, "Write a working example of a plug-in."),
    Entry("plugin check", registry.check, "Check that plug-ins follow the rules."),
    Entry("capture record", capture.capture, "Record the messages of a real training."),
    Entry("capture attack", capture.attack, "Show what a recorded training reveals to one party."),
    Entry("capture diff", capture.diff, "Compare the messages of two recorded trainings."),
    Entry("federation new", registry.new_federation, "Write an example federation of three sites."),
    Entry("federation run", federate.federate, "Train between the parties of a federation."),
    Entry("federation site", federate.site, "Configure the table and the federations of a site."),
    Entry(
        "leaderboard submit",
        leaderboard.submit,
        "Write a finished run as a bundle for a leaderboard.",
    ),
    Entry("leaderboard build", leaderboard.leaderboard, "Check submissions and write the page."),
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
            help=entry.documentation.description,
            short_help=entry.summary,
            epilog=entry.epilog,
            rich_help_panel=entry.panel,
            context_settings=_CONTEXT,
        )(add_descriptions(entry.function))
    return app
