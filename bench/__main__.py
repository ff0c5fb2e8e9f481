"""`python -m bench [solver|pipeline] [--full]`: both groups unless one is named.

Every figure is a ratio or a time measured in this run, on this machine; times of short things are medians of several.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from bench import pipeline, solver


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("group", nargs="?", choices=["solver", "pipeline"], help="measure this group only")
    parser.add_argument("--full", action="store_true", help="run SGD to the end of its schedule")
    options = parser.parse_args()
    console = Console()
    if options.group in (None, "solver"):
        solver.run(console, options.full)
    if options.group in (None, "pipeline"):
        pipeline.run(console)


main()
