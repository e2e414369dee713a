"""The top of the site: each version has a directory, and the first page leads to the newest.

`make site` runs it after Sphinx and cargo. It also sees that every crate of the Rust reference has its page.
"""

import html
import re
import sys
from pathlib import Path

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{head}<title>openmrc</title>
<style>body {{ font: 1rem/1.6 system-ui; margin: 3rem auto; max-width: 40rem; padding: 0 1rem }}</style>
<h1>openmrc</h1>
<p>Documentation of</p>
<ul>
{items}</ul>
</html>
"""


def versions(site: Path) -> list[str]:
    """The versions that are built, the newest first."""
    found = [path.parent.name for path in site.glob("*/objects.inv")]
    return sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)


def write(site: Path) -> None:
    """Writes ``index.html`` and ``versions.html``."""
    names = [html.escape(name) for name in versions(site)]
    items = "".join(f'<li><a href="{name}/index.html">{name}</a></li>\n' for name in names)
    head = f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
    (site / "index.html").write_text(PAGE.format(head=head, items=items))
    (site / "versions.html").write_text(PAGE.format(head="", items=items))


def missing(version: Path) -> list[str]:
    """Pages of crates to which the reference leads and which are not there."""
    page = version / "reference" / "rust.html"
    links = re.findall(r'href="(\.\./rust/[^"#]+)"', page.read_text())
    return [link for link in links if not (page.parent / link).exists()] if links else [f"{page}: no crate"]


def main(site: Path) -> int:
    """Writes both pages; 1 if a page of a crate is missing."""
    write(site)
    wrong = [link for name in versions(site) for link in missing(site / name)]
    for link in wrong:
        print(f"WARNING: {link} is not there", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
