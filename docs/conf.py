"""Settings of Sphinx for `make docs` (docs/development/docs.md). The pages are the Markdown files of the repository."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rewindmq import __version__  # noqa: E402

project = "RewindMQ"
release = __version__
extensions = ["myst_parser", "tests.support.docs_site.extension"]
exclude_patterns = [".*", "rewindmq", "tests", "build*", "*-data", "*.egg-info"]
root_doc = "README"
source_suffix = {".md": "markdown"}
source_url = os.environ.get("SOURCE", "")

smartquotes = False  # pages show commands, and their -- are not dashes
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # pages of behaviours have numbers for headings, two levels down

html_theme = "furo"
html_title = f"RewindMQ {release}"
html_short_title = "A message queue whose queues can be rewound: RabbitMQ's protocol and semantics over an event log"
html_theme_options = {  # the colours of docs/pictures
    "light_css_variables": {"color-brand-primary": "#8f4308", "color-brand-content": "#8f4308"},
    "dark_css_variables": {"color-brand-primary": "#f0a04b", "color-brand-content": "#f0a04b"},
}
html_static_path = ["static", "../tests/support/docs_site/search.js"]
html_css_files = ["site.css"]
html_copy_source = True
html_sourcelink_suffix = ""
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
