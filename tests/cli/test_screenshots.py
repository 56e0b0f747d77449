"""The screenshots in the documentation show the current output of the commands."""

import re

import pytest

from fedtrees.benchmarks.screenshots import (
    COMMANDS,
    FOLDER,
    PROGRESS,
    progress_screen,
    render_svg,
    screen_of,
    text_of,
)

REMEDY = "run: python -m fedtrees.benchmarks.screenshots"


def stored(name):
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_screenshot_has_the_text_that_the_command_prints(name):
    arguments = COMMANDS[name]
    current = render_svg(screen_of(arguments), name, arguments)
    assert len(text_of(current)) > 500
    assert text_of(stored(name)) == text_of(current), REMEDY


@pytest.mark.long
def test_the_screenshot_of_the_progress_has_the_form_of_the_present_one():
    """Times and the finished cells differ from run to run."""

    def form(svg):
        cells, _, bar = text_of(svg).partition("runs/custom")
        counts = re.search(r"(\d+)/(\d+) time left (\d:\d\d:\d\d|-:--:--)", bar)
        assert 0 < int(counts[1]) < int(counts[2])
        return cells, counts[2]

    current = render_svg(progress_screen(), PROGRESS, ("bench",))
    assert form(stored(PROGRESS)) == form(current), REMEDY


@pytest.mark.parametrize("name", [*COMMANDS, PROGRESS])
def test_a_screenshot_loads_nothing_from_the_network(name):
    links = re.findall(r"https?://[^\s\"')]+", stored(name))
    assert {link for link in links if "w3.org" not in link and "textualize" not in link} == set()
    assert "url(" not in re.sub(r"url\(#", "", stored(name))
