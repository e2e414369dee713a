"""Links from pages to files outside docs/: checked, and led to where the repository is online."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

_logger = logging.getLogger(__name__)
_LINK = re.compile(r"(?<=\]\()(?P<target>\.\./[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("repository_url", "", "env")
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _rewrite(app: Sphinx, page: str, content: list[str]) -> None:
    source = Path(app.srcdir)
    repository = source.parent
    directory = (source / page).parent

    def online(link: re.Match[str]) -> str:
        path = (directory / link["target"]).resolve()
        if path.is_relative_to(source):
            return link[0]
        if not path.exists():
            _logger.warning("link to %s, which is not in the repository", link["target"], location=page)
        return f"{app.config.repository_url}{path.relative_to(repository)}"

    content[0] = _LINK.sub(online, content[0])
