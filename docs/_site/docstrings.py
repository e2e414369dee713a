"""Docstrings as the package writes them, for Sphinx: Google's sections, tables of Markdown, checked names.

Not sphinx.ext.napoleon itself: it takes what stands before a colon in the docstring of a field for its type.
"""

import re
from pydoc import locate
from typing import Any

from docutils.nodes import Element, literal
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import logging

_logger = logging.getLogger(__name__)
_config = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _missing, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(list(lines), _config, app, what, name, thing, options).lines()
    if what == "module":
        lines[:] = _with_code(lines)
    lines[:] = _with_tables(lines)


def _signature(
    app: Sphinx, what: str, name: str, thing: object, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Types of fields without what pydantic checks besides: Annotated[int, Strict(strict=True)] is an int."""
    plain = re.sub(r"Annotated\[(\w+), \w+\([^)]*\)\]", r"\1", arguments) if arguments else arguments
    return plain, returns


def _with_code(lines: list[str]) -> list[str]:
    """Indented blocks of a module's docstring, which are programs and figures, as literal blocks."""
    out: list[str] = []
    for line in lines:
        above = next((each for each in reversed(out) if each), "")
        begins = line.startswith("    ") and out and not out[-1] and not above.startswith(" ")
        if begins and not above.endswith("::"):
            out += ["::", ""]
        out.append(line)
    return out


def _with_tables(lines: list[str]) -> list[str]:
    """Tables of Markdown as tables of reStructuredText."""
    out: list[str] = []
    inside = False
    for line in lines:
        if not line.startswith("|"):
            inside = False
            out.append(line)
        elif set(line) <= set("|-: "):
            continue
        else:
            if not inside:
                out += [".. list-table::", "   :header-rows: 1", ""]
                inside = True
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            out += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(cells)]
    return out


def _missing(app: Sphinx, env: object, reference: Element, content: Element) -> None:
    """Warns of a name of openmrc, written in a docstring, that there is not."""
    target = reference.get("reftarget", "")
    written = reference.get("refdomain") == "py" and isinstance(content, literal)
    if written and target.startswith("openmrc.") and locate(target) is None:
        _logger.warning("there is no %s", target, location=reference)
