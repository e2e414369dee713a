"""The site: `make docs` builds it from the pages of this directory, the docstrings and the headers of C."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

_cargo = tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]["package"]

project = "openmrc"
copyright = "the authors of openmrc, Apache-2.0"
version = release = _cargo["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstrings",
    "repository_links",
    "reference_pages",
]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_site"]
repository_url = f"{_cargo['repository']}/blob/main/"
"""Where links to files outside this directory lead."""

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    "exclude-members": "model_config",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
suppress_warnings = ["ref.python"]  # A field named as a type: bytes, bool.
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"openmrc {version}"
templates_path = ["_site/templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b3954", "color-brand-content": "#0b5a8a"},
    "dark_css_variables": {"color-brand-primary": "#bfd7ea", "color-brand-content": "#8fc1e3"},
}
