"""Screenshots of real commands for the documentation: `python -m fedtrees.benchmarks.screenshots`.

Every screenshot is recorded from the command that its title shows, in a terminal of 80 columns, and
written to ``docs/images`` as SVG. A test compares the text of each file with the present output.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
_COLUMNS, _LINES = 80, 40
_CONTROL = re.compile(r"\x1b\[(?:2K|1A|\?25[lh])")  # clear the line, go up, show the cursor
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_CODE = "import sys; from fedtrees.cli.main import main; main(sys.argv[1:])"
#: Name of the file -> arguments of the command.
COMMANDS: Mapping[str, Sequence[str]] = {
    "screen_help": ("-h",),
    "screen_help_plot": ("plot", "-h"),
    "screen_verdict": ("show", "benchmarks/leaderboard/default-bench"),
}
PROGRESS = "screen_progress"
_BENCH = (
    "bench", "--data", "wine[rows=60]", "-p", "fedtree-hist[trees=2,max_depth=2]",
    "-d", "split-only", "-a", "random-leaf", "--threat", "client", "--seeds", "3", "-j", "1",
)  # fmt: skip


def screen_of(arguments: Sequence[str]) -> str:
    """Return the first lines that a command prints in a terminal, with colours as ANSI codes."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *arguments],
        cwd=ROOT, env=_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return "\n".join(done.stdout.splitlines()[:_LINES])


def progress_screen() -> str:
    """Return the terminal of a running benchmark: its first line, and the last progress bar."""
    with TemporaryDirectory() as folder:
        output = _in_terminal([*_BENCH, "-o", str(Path(folder, "run"))])
        output = output.replace(str(Path(folder, "run")), "runs/custom")
    first = next(line for line in output.splitlines() if "cells:" in line)
    # A bar begins with a carriage return and the code that clears the line.
    bars = re.split(r"\r|\n", output)
    counted = ((bar, re.search(r"(\d+)/(\d+)", _COLOURS.sub("", bar))) for bar in bars)
    running = [bar for bar, n in counted if n is not None and 0 < int(n[1]) < int(n[2])]
    # While kernels are compiled, which happens once per machine, the bar shows no cell.
    running = [bar for bar in running if "compiling" not in bar] or running
    return f"{first}\n{_CONTROL.sub('', running[-1])}"


def _in_terminal(arguments: Sequence[str]) -> str:
    """Return everything that a command writes to a pseudo-terminal."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _CODE, *arguments],
        cwd=ROOT, env=_environment(), stdin=end, stdout=end, stderr=end,
    ) as process:  # fmt: skip
        os.close(end)
        parts = []
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the command has ended
                break
            if not part:
                break
            parts.append(part)
        os.close(terminal)
    assert process.returncode == 0
    return b"".join(parts).decode("utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """Return the environment of a terminal with colours and 80 columns."""
    terminal = {"COLUMNS": str(_COLUMNS), "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    return {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | terminal


def render_svg(screen: str, name: str, arguments: Sequence[str]) -> str:
    """Return a screen as SVG without references to other files."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), soft_wrap=False)
    shown = " ".join(part if "[" not in part else f'"{part}"' for part in arguments)
    svg = console.export_svg(title=f"fedtrees {shown}", unique_id=name)
    # Without these rules, a viewer uses its own monospaced font instead of one from the network.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S) + "\n"


def text_of(svg: str) -> str:
    """Return the text of a screenshot without its title, in the order of the file."""
    root = ElementTree.fromstring(svg)
    texts = (
        "".join(element.itertext())
        for element in root.iter("{http://www.w3.org/2000/svg}text")
        if "-title" not in element.get("class", "")
    )
    return " ".join(" ".join(texts).split())


def screenshots() -> dict[str, str]:
    """Return the SVG of every screenshot by its name."""
    files = {n: render_svg(screen_of(args), n, args) for n, args in COMMANDS.items()}
    return files | {PROGRESS: render_svg(progress_screen(), PROGRESS, _BENCH[:5])}


def main() -> None:
    """Write all screenshots."""
    for name, svg in screenshots().items():
        path = FOLDER / f"{name}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
