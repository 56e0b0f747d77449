"""Generated texts: the options in the documentation, and the completion of shells."""

from pathlib import Path

import pytest

from fedtrees.cli.main import main
from fedtrees.cli.reference import API, PAGES, folder_of, options, renewed, with_descriptions

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_of_the_documentation_are_current(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert renewed(page, text) == text, "run: python -m fedtrees.cli.reference"


def test_every_option_is_described_once():
    generated = options()
    assert "### `fedtrees bench`" in generated
    assert generated.count("\n- `-d`, `--defense`: Defenses, with grids") == 1
    assert "\n- `RUN...`: Run folders.\n" in generated
    table = generated.partition("### `fedtrees results table`")[2].partition("###")[0]
    assert "\nAlso `RUN...`, `--metric`, `--utility`" in table
    assert "--help" not in generated


def completed(monkeypatch, capsys, *words):
    monkeypatch.setenv("_FEDTREES_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["fedtrees", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert not stopped.value.code
    return capsys.readouterr().out.split()


def test_a_shell_completes_commands_options_and_names(monkeypatch, capsys):
    assert completed(monkeypatch, capsys, "pl") == ["plot", "plugin"]
    assert completed(monkeypatch, capsys, "privacy", "m") == ["measure"]
    assert completed(monkeypatch, capsys, "plot", "--wi") == ["--width"]
    assert completed(monkeypatch, capsys, "bench", "-a", "timb") == [
        "timberstrike", "timberstrike-published",
    ]  # fmt: skip
    assert completed(monkeypatch, capsys, "bench", "-d", "none,secure") == ["none,secure-sum"]
    assert completed(monkeypatch, capsys, "bench", "--data", "breast") == ["breast-cancer"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_calls_fedtrees(shell, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["--completion", shell])
    assert not exit_info.value.code
    assert "_FEDTREES_COMPLETE=complete_" in capsys.readouterr().out


def test_help_is_not_mistaken_for_a_folder(capsys):
    with pytest.raises(SystemExit) as exit_info:
        folder_of(["--help"])
    assert exit_info.value.code == 0
    assert "folder of the documentation" in capsys.readouterr().out
    assert folder_of([]) == "docs"


def test_every_name_of_the_api_page_is_followed_by_the_first_line_of_its_docstring():
    page = (DOCS / API).read_text(encoding="utf-8")
    assert with_descriptions(page) == page
    assert "   bench  Train federations with and without defenses" in page
