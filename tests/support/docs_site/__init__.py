"""The site that `make docs` builds from the Markdown pages of the repository (docs/development/docs.md).

navigation.py   the tree of pages, read from docs/README.md and the indexes that it links
extension.py    the extension of Sphinx: the tree as its navigation, links to code, llms.txt
search.js       the order of the search's results
ask.js          asks the search of a built site from a terminal
"""

from pathlib import Path

HERE = Path(__file__).parent
