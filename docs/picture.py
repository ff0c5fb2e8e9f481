"""Draws the README's picture, which is the introduction's first figure: python docs/picture.py"""

import sys
from pathlib import Path

import jupytext
import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root))
names = {}
for cell in jupytext.read(root / "chapters" / "intro.md").cells:
    if cell.cell_type == "code" and not plt.get_fignums():
        exec(cell.source, names)
plt.savefig(root / "docs" / "collapse.png", dpi=140, metadata={"Software": None})
