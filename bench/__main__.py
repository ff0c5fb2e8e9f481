"""`python -m bench [GROUP] [--full]`: all groups unless one is named.

Every figure is a ratio or a time measured in this run, on this machine; times of short things are medians of several.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench import kernels, measure, pipeline, solver

GROUPS = {"kernels": kernels, "solver": solver, "measure": measure, "pipeline": pipeline}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("group", nargs="?", choices=GROUPS, help="measure this group only")
    parser.add_argument("--full", action="store_true", help="run the solver's SGD to its end")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)  # a file takes whole numbers
    for name, group in GROUPS.items():
        if options.group in (None, name):
            group.run(console, **({"full": options.full} if name == "solver" else {}))


main()
