"""What readers take away: notebooks in plain Markdown that run in a folder without the book."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import nbformat
import pytest

from lib.book.inputs import imported
from lib.book.site.downloads import plain, standalone

RAW = re.compile(r"\{[a-z:]+\}`|^ *[`:]{3,}\{|^\([\w-]+\)=$", re.MULTILINE)
CHAPTERS = ("best-known", "own-network")  # which read stored results, and call the search and the measures
LAZY = {"collapsemetrics", "distributed", "lightning", "transformers", "pytorch_lightning"}  # or in the wheel itself
LOADED = """import sys
print(*(m.__file__ for n, m in list(sys.modules.items()) if n.split('.')[0] in ('lib', 'collapsemetrics')))"""
RUN = """
import nbclient, nbformat
notebook = nbformat.read("page.ipynb", 4)
nbclient.NotebookClient(notebook, timeout=600).execute()
print(notebook.cells[-1].outputs[0].text)
"""


def said(role, target, shown):
    """Every role shows its target in capitals, and those to pages lead to the site."""
    return shown or target.upper(), f"../{target}.html" if role == "doc" else None


def shown(text):
    return plain(textwrap.dedent(text).strip(), said)


def test_roles_become_their_text_and_labels_go():
    assert shown("(here)=\n# One\n\nSee {eq}`a`, {doc}`b` and {prf:ref}`that <c>`.") == (
        "# One\n\nSee A, [B](../b.html) and that."
    )


def test_a_theorem_becomes_a_quoted_block_with_its_number_and_its_equation_on_one_line():
    text = """
        ````{prf:theorem} Two
        :label: thm

        If {eq}`e`, then

        ```{math}
        :label: e
        x
        = y
        ```
        ````
        after
    """
    assert shown(text) == "> **THM. Two**\n>\n> If E, then\n>\n> $$ x = y  \\tag{E}$$\nafter"


def test_questions_fold_and_code_stays_as_it_is():
    text = "```{dropdown} Question: {eq}`e`?\nYes.\n```\n\n```bash\n{eq}`e` :::{x}\n```"
    assert shown(text) == (
        "<details><summary>Question: E?</summary>\n\nYes.\n\n</details>\n\n```bash\n{eq}`e` :::{x}\n```"
    )


@pytest.mark.parametrize("site", ["", "https://a.b/"])
@pytest.mark.parametrize(
    "text, words",
    [("[two](../y/two.md)", "two"), ("[Two [2024]](../y/two.md)", "Two [2024]"), ("{doc}`y/two`", "Y/TWO")],
)
def test_links_and_roles_lead_to_the_site_or_nowhere(text, words, site):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text), nbformat.v4.new_code_cell("1")])
    made = standalone(notebook, "chapters/x/one", said, "book.whl", site)
    assert made.cells[0].source == (f"[{words}](https://a.b/chapters/y/two.html)" if site else words)
    assert "book.whl" in made.cells[1].source and made.cells[2].source == "1"


@pytest.fixture(scope="module")
def taken(smoke_book, tmp_path_factory):
    """An empty folder with the wheel of the site."""
    folder = tmp_path_factory.mktemp("taken")
    (wheel,) = smoke_book.html.glob("*.whl")
    shutil.copy(wheel, folder)
    return folder


def test_no_download_shows_a_role_or_a_directive_and_every_link_is_whole(smoke_book):
    paths = [*(smoke_book.html / "_downloads").rglob("*.ipynb")]
    assert len(paths) > 35
    for path in paths:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                assert not RAW.findall(re.sub(r"```\w*\n.*?```", "", cell.source, flags=re.DOTALL)), path.name
                assert not re.findall(r"(?<!!)\]\((?!https?:)", cell.source), path.name
            assert not re.findall(r'<a [^>]*href="(?!https?:)', json.dumps(cell).replace("\\", "")), path.name


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_download_runs_in_a_folder_without_the_book_and_the_wheel_asks_for_all_that_it_imports(
    smoke_book, taken, name
):
    (path,) = (smoke_book.html / "_downloads").rglob(f"{name}.ipynb")
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "import lib.book" in code[0].source and "parameters" in code[1].metadata["tags"]
    notebook.cells.append(nbformat.v4.new_code_cell(LOADED))
    nbformat.write(notebook, taken / "page.ipynb")
    environment = {"HOME": str(taken), "OMP_NUM_THREADS": "1", "COLLAPSE_DATA": str(taken / "no data")}
    done = subprocess.run([sys.executable, "-c", RUN], cwd=taken, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    files = done.stdout.split()
    assert any("/collapsemetrics/" in file for file in files) and all(str(taken) in file for file in files)
    sources = [Path(file).read_text() for file in files] + [cell.source for cell in code[1:]]
    called = {module.split(".")[0] for source in sources for module, _ in imported(source)}
    known, asked = packages_distributions(), asked_for(["how-representations-collapse"], taken)
    assert {name for name in called & known.keys() if not {*map(canonical, known[name])} & asked} <= LAZY


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_for(names, folder):
    """The distributions with these names, and all that they ask for."""
    found, places = set(), [str(path) for path in folder.iterdir() if path.is_dir()] + sys.path
    names = [*names]
    while names:
        found.add(name := names.pop())
        for one in distributions(name=name, path=places):
            needs = {canonical(re.match(r"[\w.-]+", line)[0]) for line in one.requires or () if "extra ==" not in line}
            names += needs - found
    return found


def test_with_an_address_and_a_repository_a_page_says_where_it_opens_and_where_problems_go(built):
    built.edit("_config.yml", 'baseurl: ""', "baseurl: https://a.b/book")
    built.edit("_config.yml", 'url: ""', "url: https://github.com/me/book")
    built.run("publish")
    page = built.html("part/one")
    for address in ("colab.research.google.com/github/me/book/", "mybinder.org/v2/gh/me/book/", "me/book/issues/new?"):
        assert address in page
    (path,) = (built.build / "html" / "_downloads").rglob("one.ipynb")
    assert "https://a.b/book/" in path.read_text()
