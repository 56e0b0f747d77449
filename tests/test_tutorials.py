"""The tutorials show the output that their commands print."""

from pathlib import Path

import pytest
from console_blocks import agrees, copy_listings, read_commands, run_command

ROOT = Path(__file__).parents[1]
PAGES = ("own-table", "paper", "first-audit", "first-protocol", "first-defense", "first-attack")


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_shows_the_output_of_its_commands(page, tmp_path):
    path = ROOT / f"docs/tutorials/{page}.md"
    copy_listings(path, tmp_path)
    commands = read_commands(path.read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        output = run_command(command.line, tmp_path)
        assert agrees(command.output, output), f"$ {command.line}\n{output}"


def test_an_ellipsis_stands_for_any_number_of_lines():
    assert agrees("a\n...\nd\n", "a\nb\nc\nd\n")
    assert agrees("a\n...\n", "a\nb\n")
    assert not agrees("a\n...\nd\n", "a\nb\nc\n")
    assert not agrees("a\nb\n", "a\nb\nc\n")


def test_durations_may_differ():
    assert agrees("finished in 12 s, 3 rows", "finished in 14.5 s, 3 rows")
    assert agrees("  trees    20\n  seconds   0.82\n", "  trees    20\n  seconds   10.31\n")
    assert not agrees("  trees    20\n  seconds   0.82\n", "  trees    40\n  seconds   0.82\n")
    assert not agrees("finished in 12 s, 3 rows", "finished in 12 s, 40 rows")


def test_numbers_may_differ_slightly_and_words_may_not():
    assert agrees("83 of 456 rows, AUC 0.98", "84 of 456 rows, AUC 0.97")
    assert not agrees("83 of 456 rows", "12 of 456 rows")
    assert not agrees("AUC 0.98", "AUC 0.90")
    assert not agrees("83 of 456 rows", "83 of 456 members")


def test_a_command_has_to_fail_exactly_where_the_page_says_so(tmp_path):
    assert "unknown" not in run_command("fedtrees list defenses", tmp_path)
    with pytest.raises(AssertionError):
        run_command("fedtrees list defences", tmp_path)
    run_command("fedtrees list defences  # exit code 2", tmp_path)
    with pytest.raises(AssertionError):
        run_command("fedtrees list defenses  # exit code 2", tmp_path)
