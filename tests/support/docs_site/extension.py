"""The extension of Sphinx that makes the site: navigation, links to code, tasks that the search knows, llms.txt."""

import json
import os
import shutil
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from tests.support.docs_site.navigation import FRONT, INDEX, ROOT, Branch, Page, tree

LEAF = "docs/decisions/README.md"  # its hundred pages would be half of the navigation, and of the time of a build
TASKS = "tasks.js"  # the task of each page, for the search


def document(page: str) -> str:
    """Return Sphinx's name of a page."""
    return page.removesuffix(".md")


def toctree(pages: list[Page], caption: str = "") -> str:
    lines = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", *lines, "", *(f"/{document(page.name)}" for page in pages), "```", ""])


def add_navigation(app: Sphinx, docname: str, content: list[str]) -> None:
    """Append the pages below this one to its text, which is where Sphinx reads the navigation."""
    branches: list[Branch] = app.config.branches
    if docname == app.config.root_doc:
        content[0] += toctree([Page(INDEX, [])]) + "".join(toctree(each.pages, each.title) for each in branches)
    for page in (page for branch in branches for page in branch.walk()):
        if document(page.name) == docname and page.children and page.name != LEAF:
            content[0] += toctree(page.children)


def mend_links(app: Sphinx, doctree: nodes.document) -> None:
    """Point links to code at `source_url`; without one they become plain text."""
    docname = app.env.docname
    if docname.startswith(document(LEAF).removesuffix("README")):
        app.env.metadata[docname]["orphan"] = True
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        path = os.path.normpath(os.path.join(os.path.dirname(docname), node["reftarget"].partition("#")[0]))
        if node.get("refdomain") is None and (ROOT / path).exists() and node["reftarget"][0] != "#":
            url = f"{app.config.source_url.rstrip('/')}/{path}"
            shown = nodes.reference(refuri=url) if app.config.source_url else nodes.inline()
            shown += node.children
            node.replace_self(shown)


def llms(branches: list[Branch], summary: str) -> str:
    """Return the text of llms.txt (llmstxt.org): the pages in Markdown, a line each, by reader."""
    lines = ["# RewindMQ", "", f"> {summary}", "", f"- [README](_sources/{FRONT}): what it is, and a first rewind", ""]
    for branch in branches:
        lines += [f"## {branch.title}", ""]
        for page in branch.walk():
            lines.append(f"- [{page.title}](_sources/{page.name})" + (f": {page.tasks[0]}" if page.tasks else ""))
        lines.append("")
    return "\n".join(lines)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Make the front page index.html as well, and write llms.txt."""
    if error is None and app.builder.format == "html":
        out = Path(app.outdir)
        shutil.copyfile(out / f"{document(FRONT)}.html", out / "index.html")
        (out / "llms.txt").write_text(llms(app.config.branches, app.config.html_short_title))
        tasks = {document(page.name): " ".join(page.tasks) for branch in app.config.branches for page in branch.walk()}
        (out / "_static" / TASKS).write_text(f"window.REWINDMQ_TASKS = {json.dumps(tasks, allow_nan=False)};\n")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("source_url", "", "env", str)
    app.add_config_value("branches", tree(), "")
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", mend_links)
    app.connect("build-finished", finish)
    app.add_js_file(TASKS, loading_method="defer")
    app.add_js_file("search.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
