"""Kills builds of a throw-away book at random moments, and looks each time for what is broken, lost or made twice.

By hand: python tests/kill.py --kills 50 --seed 0
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from made_up import CLAIM, Book

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
CHAPTERS = {
    "one": """from lib.ledger import claims
ledger = claims.open("feature-collapse", profile=profile)
ledger.check("fc-one", measured={"x": 42, "note": ["turn TURN"]})""",
    "two": """import contextlib, time
from IPython.display import SVG, display
from lib.runs import kept
def work(part):
    with open("log", "a") as log:
        log.write(f"{part[0]} ")
    time.sleep(0.1)
    return part
with contextlib.redirect_stdout(None):  # it says what it takes up
    made = kept.run(work, list(range(8)), "work", at_once=1)
print(made, "turn TURN")
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"><text>TURN</text></svg>'))""",
}
DATED = rb'"seconds": [\d.]+| in \d+ s\b|"\d+": (\d+|\[[\d, ]+\])(, )?'  # the last: of the search


class Victim:
    """A book whose chapters tell the turn in which they were written. A turn ends with a build that is not killed."""

    def __init__(self, folder):
        self.book, self.turn, self.kills, self.before = Book(folder).with_library(), 0, 0, {}
        self.book.declare(CLAIM)
        self.html, self.log = self.book.build / "html", self.book.root / "log"
        self.begin()

    def begin(self):
        self.turn, self.done = self.turn + 1, {}
        self.log.write_text("")
        for name, code in CHAPTERS.items():
            self.book.chapter(name, code.replace("TURN", str(self.turn)))

    def build_and_kill(self, draw):
        """Kill a build within some time of one of its moments, unless it ends before."""
        begun, there = self.log.read_text(), self.sites()
        begins, most = draw.choice(
            [
                (lambda: True, 1.5),
                (lambda: self.log.read_text() != begun, 1),
                (lambda: self.sites() - there, 1.5),
                (lambda: any((site / ".seal").exists() for site in self.sites() - there), 0.1),
            ]
        )
        delay, number = draw.uniform(0, most), draw.choice(SIGNALS)
        process = self.book.start("build")
        while process.poll() is None and not begins():
            time.sleep(0.001)
        time.sleep(delay)
        if killed := process.poll() is None:
            os.killpg(process.pid, number)
            self.kills += 1
        output, _ = process.communicate(timeout=60)  # this waits for the kernels, too
        ends = (0, 130, -number, -signal.SIGINT) if killed else (0,)  # the last two before and after the command's work
        assert process.returncode in ends, (process.returncode, output)
        assert "Traceback" not in output or process.returncode < 0, output
        self.look()
        if process.returncode == 0:
            assert self.shown() == self.turn, "the build ended, and its site is not there"
            self.begin()

    def sites(self):
        return set((self.book.build / "sites").glob("*-*"))

    def look(self):
        new = [name for name in self.book.executed() if f"turn {self.turn}" in str(self.book.notebook(name))]
        done = {name: self.book.executed()[name] for name in new}
        assert self.done.items() <= done.items(), "a finished chapter was executed again, or is lost"
        self.done = done
        runs = [int(item) for item in self.log.read_text().split()]
        again = len(runs) - len(set(runs))  # one that was at work when it was killed
        assert runs == sorted(runs) and again <= self.kills, f"finished runs were made again: {runs}"
        if self.html.is_symlink() or self.before:
            after = self.book.published()
            assert after == json.loads((self.html / ".seal").read_text()), "the site is not whole"
            assert after == self.before or self.shown() == self.turn, "this is neither the old site nor the new one"
            self.before = after

    def shown(self):
        """The turn that all pages of the site and the claims tell."""
        texts = [self.book.html("part/one"), self.book.html("part/two"), (self.book.build / "claims.json").read_text()]
        (turn,) = {turn for text in texts for turn in re.findall(r"turn (\d+)", text)}
        return int(turn)

    def undated(self):
        self.book.run("build")
        self.look()
        return {name: re.sub(DATED, b"", (self.html / name).read_bytes()) for name in self.before}


def kill(number, seed, folder, announce=lambda *_: None):
    """Let a number of builds be killed; the names of files that then differ from those of a book never killed."""
    draw, victim = random.Random(seed), Victim(Path(folder))
    while victim.kills < number:
        victim.build_and_kill(draw)
        announce(f"{victim.kills} kills, turn {victim.turn}")
    killed = victim.undated()
    shutil.rmtree(victim.book.build)
    victim.done, victim.before = {}, {}
    victim.log.write_text("")
    calm = victim.undated()
    return sorted(name for name in killed.keys() | calm.keys() if killed.get(name) != calm.get(name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        different = kill(given.kills, given.seed, folder, print)
    sys.exit(f"different from a book never killed: {different}" if different else "nothing broken, lost or made twice")
