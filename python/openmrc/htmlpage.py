"""Reports as HTML: one file each, light and dark, for narrow and wide screens, which loads nothing.

A report is a Jinja template that extends ``page.html.j2`` of this package.
"""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

import openmrc
from openmrc import colours
from openmrc.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: Path | str, package: str, template: str, **values: Any) -> None:
    """Writes a report; arguments as for :func:`render`.

    Raises:
        OSError: if the file cannot be written.
    """
    write_text(path, render(package, template, **values))


def render(package: str, template: str, **values: Any) -> str:
    """A report as text.

    Args:
        package: The package in whose folder ``templates`` the template is.
        template: Its name.
        values: What it shows: ``title`` and ``lead`` of the page, and its own.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("openmrc")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(
        **values, palette=colours.css(), version=openmrc.__version__
    )


def embedded(figure: "Figure") -> str:
    """A matplotlib figure as the address of an image: an SVG that follows light and dark mode."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "openmrc"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(colours.adaptive(buffer.getvalue()).encode()).decode()
    return f"data:image/svg+xml;base64,{data}"
