"""Print the performance tables.

``python -m fedtrees.benchmarks.perf [--only PART] [--data-dir FOLDER]`` measures all parts, or the
selected ones. ``--draw-rows FILE`` draws the cost by the number of rows instead, and
``--draw-clients FILE`` by the number of clients.
"""

import argparse
import os
import platform
import sys

# The number of threads is read when these libraries are loaded, so it is set before they are.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from fedtrees.benchmarks.perf.measure import Size, markdown
from fedtrees.benchmarks.perf.parts import parts
from fedtrees.benchmarks.perf.runs import draw_rows
from fedtrees.benchmarks.perf.scaling import draw_clients


def main() -> None:
    """Measure the selected parts and print a table for each."""
    names = list(parts())
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.perf")
    parser.add_argument("--data-dir", default=None, help="tables that the attacks run on")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of rows and trees; below 1 it shows that a part works and measures nothing",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        choices=[*names, "growth"],
        help=f"measure this part (may be repeated); growth, or one of {', '.join(names)}",
    )
    parser.add_argument("--draw-rows", metavar="FILE", help="draw the cost by the number of rows")
    parser.add_argument(
        "--draw-clients", metavar="FILE", help="draw the cost by the number of clients"
    )
    options = parser.parse_args()
    if options.draw_rows:
        draw_rows(options.draw_rows)
        return
    if options.draw_clients:
        draw_clients(options.draw_clients)
        return
    print(f"{platform.machine()}, Python {platform.python_version()}", end="")
    print("; one thread, CPU seconds, medians, unless a line says otherwise")
    for name, measure in parts(options.data_dir).items():
        if options.only and not {name, name.partition("growth")[1]} & {*options.only}:
            continue
        lines = []
        for line in measure(Size(options.scale)):
            print(f"  {line.what}: {line.measured}", file=sys.stderr, flush=True)
            lines.append(line)
        print(f"\n## {name}\n\n{markdown(lines)}", flush=True)


if __name__ == "__main__":
    main()
