"""Sphinx's settings; ``./dev docs`` builds the site into ``build/docs``.

No page needs the network, neither to be built nor to be read.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import tvm_fusion  # noqa: E402
from docs.pages import pages, write  # noqa: E402

project, author = "tvm_fusion", "The tvm_fusion authors"
version = release = tvm_fusion.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxarg.ext",
    "sphinx_copybutton",
]
exclude_patterns = ["pages", "generated/mapping_table.md"]
html_theme = "furo"
html_title = f"tvm_fusion {version}"
html_show_copyright = html_copy_source = html_show_sourcelink = False
copybutton_prompt_text = "$ "

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
myst_ref_domains = ["std", "py"]  # that of sphinx-argparse cannot be asked
suppress_warnings = ["myst.header"]  # pages of benchmarks leave levels out

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_param = napoleon_use_rtype = False

nitpicky = True
# Types in docstrings are phrases ("dict of str to numpy.ndarray"), not references.
nitpick_ignore_regex = [("py:class", r"(?!tvm_fusion\.).*")]


def internal(_app, _env, node, contnode):
    """Leave a reference to what has no page as text, if it is there."""
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not target.startswith("tvm_fusion."):
        # Relative ones are checked by tests/test_docstring_references.py.
        return contnode if node.get("refspecific") else None
    module, *names = target, ""
    while module:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names = [name, *names]
        else:
            for name in filter(None, names):
                found = getattr(found, name, None)
            return None if found is None else contnode
    return None


def setup(app):
    """Make the pages that are made of other files before Sphinx looks for pages."""
    app.connect("config-inited", lambda *_: write(HERE / "generated", pages()))
    app.connect("missing-reference", internal)
