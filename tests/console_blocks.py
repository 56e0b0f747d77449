"""Run the commands of a tutorial, and compare their output with the page.

``python tests/console_blocks.py PAGE`` runs all commands of the page in a temporary folder and
writes their output into the page. A command is a line that begins with ``$`` in a block that is
marked as ``console``. The output of a command follows it. A line ``...`` in the page stands for any
number of lines, and is kept.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", flags=re.S)
LISTING = re.compile(r"```\{literalinclude\} (\S+)")
#: A command that is expected to fail ends with this comment.
STATUS = re.compile(r"# exit code (\d+)$")
#: Durations differ between runs, and are replaced before texts are compared.
DURATION = re.compile(r"\d+(\.\d+)? (s|min|minutes?|seconds?|MiB|GiB)\b|(?<=seconds)\s+\d+(\.\d+)?")

NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass
class Command:
    """A command of a page and the output that the page shows."""

    line: str
    output: str


def read_commands(page: str) -> list[Command]:
    """Return all commands of a page, in order."""
    commands = []
    for block in BLOCK.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append(Command(line[2:], ""))
            elif commands:
                commands[-1].output += line + "\n"
    return commands


def copy_listings(path: Path, folder: Path) -> None:
    """Copy the Python files that a page shows into the folder in which its commands run."""
    for name in LISTING.findall(path.read_text(encoding="utf-8")):
        shutil.copy(path.parent / name, folder)


def run_command(line: str, folder: Path) -> str:
    """Return the output of a command without progress messages, which are sent to stderr."""
    arguments = shlex.split(line, comments=True)
    if arguments[0] == "fedtrees":
        arguments[:1] = [sys.executable, "-m", "fedtrees.cli.main"]
    elif arguments[0] == "python":
        arguments[0] = sys.executable
        arguments[1] = str(ROOT / arguments[1])
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    environment.pop("FEDTREES_DATA", None)
    process = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    expected = int(status[1]) if (status := STATUS.search(line)) else 0
    assert process.returncode == expected, process.stderr
    # The name of the temporary folder differs in every run.
    output = process.stdout.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return "".join(line.rstrip() + "\n" for line in output.rstrip("\n").splitlines())


def agrees(shown: str, output: str) -> bool:
    """Return whether an output agrees with the one in a page, in which `...` means any lines.

    Durations may differ. Scores may differ slightly, because the last bits of sums depend on the
    processor (`close`). With `...`, all other text must be equal.
    """
    shown, output = DURATION.sub("N", shown.strip()), DURATION.sub("N", output.strip())
    if not re.search(r"^\.\.\.$", shown, flags=re.M):
        words, others = NUMBER.split(shown), NUMBER.split(output)
        numbers = zip(NUMBER.findall(shown), NUMBER.findall(output), strict=False)
        return words == others and all(
            close(shown_number, number) for shown_number, number in numbers
        )
    parts = [re.escape(part) for part in re.split(r"^\.\.\.$\n?", shown, flags=re.M)]
    return re.fullmatch(r"[\s\S]*?".join(parts), output) is not None


def close(shown: str, number: str) -> bool:
    """Return whether a number differs by at most 5%, by 2 if it counts, or by 0.02 otherwise."""
    shown_value, value = float(shown), float(number)
    tolerance = 0.02 if "." in shown and abs(shown_value) < 2 else 2.0
    return (
        abs(shown_value - value) <= max(tolerance, 0.05 * abs(shown_value))
        if shown_value != value
        else True
    )


def rewrite(path: Path) -> None:
    """Write the output of all commands into a page, except where the page shortens it."""
    page = path.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        copy_listings(path, Path(folder))

        def updated(match: re.Match[str]) -> str:
            text = ""
            for command in read_commands(f"```console\n{match[0]}```"):
                output = run_command(command.line, Path(folder))
                is_shortened = "\n...\n" in f"\n{command.output}" and agrees(command.output, output)
                text += f"$ {command.line}\n{command.output if is_shortened else output}"
            return text

        path.write_text(BLOCK.sub(updated, page), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
