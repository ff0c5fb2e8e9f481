"""`python -m bench [kernels|measure]`: both unless one is named. Every time and ratio is measured in this run."""

from __future__ import annotations

import argparse

from bench import kernels, measure

GROUPS = {"kernels": kernels, "measure": measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="kernels or measure", default=list(GROUPS))
    for name in parser.parse_args().groups:
        GROUPS[name].run()


main()
