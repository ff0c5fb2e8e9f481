"""What the book adds to Sphinx: numbers by part and page, links to statements, a search that lists sections, and
notebooks that readers can take away."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx_proof.nodes import NODE_TYPES

from lib.book.page import NUMBERS
from lib.book.site import downloads

STATEMENTS = tuple(NODE_TYPES.values())


def setup(app) -> dict:
    """Register the functions below with Sphinx."""
    app.connect("env-get-updated", number_by_page, priority=900)  # after Sphinx has counted
    app.connect("doctree-resolved", link_statements)
    app.connect("build-finished", list_sections)
    app.connect("build-finished", write_downloads)
    app.connect("autodoc-skip-member", skip_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def number_by_page(app, env) -> list[str]:
    """Number figures, equations, exercises and statements as part, page, place on the page: IV.2.3.

    Theorems, lemmas and all other statements of a page are counted together. A part is a caption of the table of
    contents whose pages lie in a folder; pages below a page (VI.2) are VI.2.1 and so on.
    """
    contents = env.external_site_map
    parts = [tree for tree in contents.root.subtrees if tree.items[0].count("/") > 1]
    queue = [((part,), tree) for part, tree in zip(NUMBERS, parts, strict=False)]
    places = {}
    for place, tree in queue:
        for n, page in enumerate(tree.items, 1):
            places[page] = (*place, n)
            queue += [(places[page], below) for below in contents[page].subtrees]
    for page, kinds in env.toc_fignumbers.items():
        place = places.get(page, ())
        for numbers in kinds.values():
            numbers.update({name: (*place, n) for n, name in enumerate(numbers, 1)})
        statements = (node for node in env.get_doctree(page).findall() if isinstance(node, STATEMENTS))
        for n, node in enumerate(statements, 1):
            kinds[node["countertype"]][node["ids"][0]] = (*place, n)
    return []  # no page has to be read again


def link_statements(app, tree, page) -> None:
    """Give the title of each statement a link to it, as headings have one."""
    for node in (node for node in tree.findall() if isinstance(node, STATEMENTS)):
        link = f'<a class="headerlink" href="#{node["ids"][0]}" title="Link to this statement">#</a>'
        node[0] += nodes.raw(text=link, format="html")


def skip_fields(app, what, name, member, skip, options) -> bool | None:
    """Leave the fields of a named tuple to the line above its docstring."""
    return True if str(member.__doc__).startswith("Alias for field number") else None


def list_sections(app, error) -> None:
    """Write the search index anew, with an entry for each section and each statement instead of each page.

    The name `page#anchor` of an entry becomes an address in `scorer.js` beside this file.
    """
    if error or app.builder.name != "html":
        return
    index = app.builder.indexer
    index.prune([])
    for page in sorted(app.env.found_docs):
        tree, title = app.env.get_doctree(page), app.env.titles[page].astext()
        for part in reversed([*tree.findall(_listed)]):  # what a section contains is removed before the section's turn
            name, said = page, title
            if part.parent is not tree:
                name, said = f"{page}#{part['ids'][0]}", f"{part[0].astext().strip()} – {title}"
            part.parent.remove(part)
            part[0] = nodes.title(text=said)
            index.feed(name, page, said, part)
    with open(Path(app.outdir, "searchindex.js"), "w", encoding="utf8") as file:
        index.dump(file, app.builder.indexer_format)


def _listed(node) -> bool:
    """Is it a statement, or a section with a heading (the content of a statement or exercise is one without)?"""
    return isinstance(node, (nodes.section, *STATEMENTS)) and bool(node.children) and isinstance(node[0], nodes.title)


def write_downloads(app, error) -> None:
    """Put the notebooks behind the download buttons, in plain Markdown, and the wheel that they install at the root."""
    if error or app.builder.name != "html":
        return
    folder, site = Path(app.srcdir, "downloads"), app.config.html_baseurl
    site = site and site.rstrip("/") + "/"
    wheel = next(folder.glob("*.whl"))
    shutil.copy(wheel, app.outdir)
    for path in folder.rglob("*.ipynb"):
        file = path.relative_to(folder).as_posix()
        page = file.removesuffix(".ipynb")
        notebook = nbformat.read(path, as_version=4)
        notebook = downloads.standalone(notebook, page, _resolver(app, page), wheel.name, site)
        for target in (Path("_sources", file), Path("_downloads", app.env.dlfiles[f"downloads/{file}"][1])):
            if Path(app.outdir, target).is_file():
                nbformat.write(notebook, Path(app.outdir, target))


def _resolver(app, page: str):
    """What a role on a page shows, and the page that it leads to; see :data:`lib.book.site.downloads.Resolve`."""

    def resolve(role: str, target: str, shown: str | None):
        domain, _, kind = role.rpartition(":")
        domain = domain or {"eq": "math", "cite": "cite"}.get(role, "std")
        kind = "p" if role == "cite" else kind
        words = nodes.inline(text=shown or target)
        about = {"reftarget": target, "refexplicit": shown is not None, "refdoc": page}
        node = pending_xref("", words, refdomain=domain, reftype=kind, **about)
        found = app.env.domains[domain].resolve_xref(app.env, page, app.builder, kind, target, node, words)
        if found is None:  # an exercise
            number = app.env.toc_fignumbers.get(page, {}).get("exercise", {}).get(target)
            return (f"Exercise {'.'.join(map(str, number))}" if number else shown or target), None
        leads = (part["refuri"] for part in found.findall(nodes.reference) if "refuri" in part)
        return found.astext(), next(leads, None)

    return resolve
