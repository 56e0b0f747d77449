"""The help of every command: panels, complete texts in 80 columns, examples and old names."""

import re
import shlex

import pytest
from typer.main import get_command

from fedtrees.cli.commands import COMMANDS, GROUPS, OLD_COMMANDS
from fedtrees.cli.help import OLD_OPTIONS, commands_of
from fedtrees.cli.main import app, main
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.experiments.options import PANELS

BY_PATH = commands_of(get_command(app), "fedtrees")
PATHS = list(BY_PATH)
LEAVES = [f"fedtrees {entry.name}" for entry in COMMANDS]
EXAMPLES = [command for entry in COMMANDS for _, command in entry.documentation.examples]


def shown(capsys, monkeypatch, *arguments):
    """Return the lines that a command prints in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert not stopped.value.code
    return capsys.readouterr().out.splitlines()


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("path", PATHS)
def test_the_help_fits_80_columns_and_shortens_no_text(path, capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, *path.split()[1:], "-h")
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    text = words(" ".join(lines))
    assert words(BY_PATH[path].help) in text
    for item in BY_PATH[path].params:
        if not getattr(item, "hidden", False):
            assert all(re.search(rf"{flag}[ ,]", text) for flag in item.opts if flag[0] == "-")
    for title, panel in panels_of(lines).items():
        described = words(" ".join(map(description_of, panel)))
        for item in BY_PATH[path].params:
            if getattr(item, "rich_help_panel", None) == title:
                assert words(item.help) in described, item.name


def description_of(line):
    """Return the right column of a line, which is the complete line if it has no name."""
    has_name = re.match(r"  \S", line)
    return re.split(r"  +", line.strip(), maxsplit=1)[-1] if has_name else line


def panels_of(lines):
    """Return the lines of every panel by its title."""
    panels, title = {}, None
    for line in lines:
        if match := re.fullmatch(r"(\S.*?) ─+", line):
            title = match[1]
            panels[title] = []
        elif title and line.strip():
            panels[title].append(line)
    return panels


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_has_a_panel_and_panels_have_one_order(path, capsys, monkeypatch):
    for item in BY_PATH[path].params:
        if item.param_type_name == "option":
            assert item.rich_help_panel in PANELS, item.name
    titles = list(panels_of(shown(capsys, monkeypatch, *path.split()[1:], "-h")))
    assert titles[-1] == "Examples"
    order = ["Arguments", *PANELS, "Examples"]
    assert titles == [title for title in order if title in titles]


@pytest.mark.parametrize("path", ["fedtrees", *(f"fedtrees {name}" for name in GROUPS)])
def test_a_list_of_commands_shows_every_summary_in_one_line(path, capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, *path.split()[1:])  # without -h, too
    prefix = path.removeprefix("fedtrees").strip()
    summaries = {
        e.name.split()[-1]: e.summary for e in COMMANDS if e.name.rpartition(" ")[0] == prefix
    }
    summaries |= GROUPS if not prefix else {}
    listed = dict(line.strip().split(maxsplit=1) for line in lines if re.match(r"  [a-z]", line))
    assert {name: listed.get(name) for name in summaries} == summaries


def test_every_command_has_two_examples_and_a_short_list_at_the_top():
    assert all(len(entry.documentation.examples) == 2 for entry in COMMANDS)
    assert len([e for e in COMMANDS if " " not in e.name]) <= 8
    assert {e.name.rpartition(" ")[0] for e in COMMANDS} == {"", *GROUPS}


@pytest.mark.parametrize("command", EXAMPLES)
def test_an_example_has_options_and_names_that_exist(command):
    """Parse the example as its command does, and create everything that it names."""
    for path in (f"fedtrees {entry.name}" for entry in COMMANDS):
        if command == path or command.startswith(f"{path} "):
            break
    group = get_command(app)
    arguments = shlex.split(command.removeprefix(path).replace("\\\n", ""))
    context = commands_of(group, "fedtrees")[path].make_context(path, arguments)
    values = context.params
    for text in [*(values.get("protocol") or ()), *(values.get("named") or ())]:
        if isinstance(values.get("protocol"), list):
            assert [register.make("protocol", spec) for spec in parse_grid(text)]
    for composed in parse_composed(values.get("defense") or ()):
        assert all(register.make("defense", part) for part in composed.parts)
    attacks = values.get("attack") or ()
    assert all(register.make("attack", spec) for text in attacks for spec in parse_grid(text))


@pytest.mark.parametrize("command", [c for c in EXAMPLES if c.split()[1] in ("list", "doctor")])
def test_examples_that_need_no_file_run(command, capsys, monkeypatch):
    assert shown(capsys, monkeypatch, *shlex.split(command)[1:])


@pytest.mark.parametrize("old", OLD_COMMANDS)
def test_a_name_of_the_previous_release_is_the_present_command(old, capsys, monkeypatch):
    renamed = {
        "advise": "recommend",
        "capture": "record",
        "federate": "run",
        "leaderboard": "build",
    }
    assert OLD_COMMANDS[old].split()[-1] == renamed.get(old, old)
    new = shown(capsys, monkeypatch, *OLD_COMMANDS[old].split(), "-h")
    assert new[0].startswith(f"Usage: fedtrees {OLD_COMMANDS[old]}")
    if old not in GROUPS:
        assert shown(capsys, monkeypatch, old, "-h") == new
        assert not any(re.match(rf"  {old} ", line) for line in shown(capsys, monkeypatch))


def test_a_group_with_an_old_name_still_takes_the_old_arguments():
    root = get_command(app)
    assert root.renamed_command(["capture", "rabit", "--to", "1"])[:3] == [
        "capture",
        "record",
        "rabit",
    ]
    assert root.renamed_command(["leaderboard", "all", "-o", "site"])[:2] == [
        "leaderboard",
        "build",
    ]
    for present in (
        ["capture", "attack", "a"],
        ["capture", "-h"],
        ["leaderboard"],
        ["capture", "recrod"],
    ):
        assert root.renamed_command(present) == present


def test_an_old_option_is_the_present_one(capsys, tmp_path):
    for old, new in OLD_OPTIONS.items():
        assert not any(old in item.opts for command in BY_PATH.values() for item in command.params)
        assert any(new in item.opts for command in BY_PATH.values() for item in command.params)
    for spelling in (["--out", str(tmp_path / "a.py")], [f"--out={tmp_path / 'b.py'}"]):
        with pytest.raises(SystemExit):
            main(["plugin", "new", "attack", "mine", *spelling])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.py", "b.py"]


def test_the_same_thing_has_the_same_option_in_every_command():
    flags = {}
    for path in LEAVES:
        for item in BY_PATH[path].params:
            if item.param_type_name == "option":
                flags.setdefault(item.opts[-1], set()).add(tuple(item.opts))
    assert flags["--output"] == {("-o", "--output")}
    assert flags["--protocol"] == {("-p", "--protocol")}
    assert flags["--defense"] == {("-d", "--defense")}
    assert flags["--attack"] == {("-a", "--attack")}
    assert flags["--jobs"] == {("-j", "--jobs")}
    assert not {"--out", "--label-column", "--label_column", "--threads"} & set(flags)
