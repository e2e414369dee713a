"""The pages of the reference, written before Sphinx reads its sources: of each module, of C, of the crates.

They are in docs/reference/, which is no part of the repository. That of the crates leads to the pages that
`cargo doc` makes.
"""

import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.application import Sphinx

MODULES = {
    "openmrc.verbs": "Devices, memory, queue pairs, completions",
    "openmrc.connect": "Meeting a peer",
    "openmrc.controller": "EV and congestion control profiles of a device",
    "openmrc.testing": "A bad network on purpose",
    "openmrc.errors": "Exceptions",
    "openmrc.observe": "Counters and events of running devices",
    "openmrc.collectives": "Collective operations",
    "openmrc.torch": "PyTorch",
    "openmrc.transfer": "Files over all planes",
    "openmrc.fabric": "Plans of fabrics, paths and entropy values",
    "openmrc.switchconf": "Configurations of switches, and their verification",
    "openmrc.lab": "Fabrics in network namespaces",
    "openmrc.localise": "Which part has failed",
    "openmrc.operate.locate": "Which part of a running fabric has failed",
    "openmrc.sim": "The simulator",
    "openmrc.wire": "Packets",
    "openmrc.units": "Sizes, rates, times and shares as text",
}
HEADERS = {"mrc.h": "the application interface", "mrc_ctl.h": "the control interface"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    source = Path(app.srcdir)
    out = source / "reference"
    out.mkdir(exist_ok=True)
    for name, title in MODULES.items():
        heading = f"{name}: {title}"
        _renew(out / f"{name}.rst", f"{heading}\n{'=' * len(heading)}\n\n.. automodule:: {name}\n")
    for old in set(out.glob("openmrc.*")) - {out / f"{name}.rst" for name in MODULES}:
        old.unlink()
    _renew(out / "c.rst", "".join(_of_c(source.parent / "crates/capi/include")))
    _renew(out / "rust.rst", "".join(_of_rust(source.parent / "crates")))
    pages = "".join(f"   {name}\n" for name in (*MODULES, "c", "rust"))
    title = "Reference: Python, C and Rust"
    _renew(out / "index.rst", f"{title}\n{'=' * len(title)}\n\n.. toctree::\n   :maxdepth: 1\n\n{pages}")


def _renew(file: Path, text: str) -> None:
    """Leaves a file that is as it should be, so that Sphinx does not read it again."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


class Declaration(NamedTuple):
    """A function, struct or enum of a header."""

    kind: str
    name: str
    comment: str
    code: str


_DECLARATION = re.compile(
    r"(?P<comment>(?:/\*(?:(?!\*/).)*\*/\n)*)"
    r"(?P<code>(?:(?P<kind>struct|enum) (?P<name>\w+) \{\n.*?^\};"
    r"|(?:static inline )?[a-z][\w ]*[ *](?P<function>\w+)\((?:void|[^;{}()]*)\)(?:;|\n?\{.*?^\})))",
    re.DOTALL | re.MULTILINE,
)


def declarations(header: str) -> Iterator[Declaration]:
    """The functions, structs and enums that a header declares, in its order."""
    for found in _DECLARATION.finditer(header):
        comment = re.sub(r"^ ?/?\*+/? ?|\s*\*/$", "", found["comment"].strip(), flags=re.MULTILINE)
        kind = found["kind"] or "function"
        yield Declaration(kind, found["name"] or found["function"], comment.strip(), found["code"])


def _of_rust(directory: Path) -> Iterator[str]:
    title = "Rust: the crates"
    yield f"{title}\n{'=' * len(title)}\n\n"
    yield "The crates are no interface for other programs: they change as the project needs. "
    yield ":doc:`../architecture` says which may use which.\n\n"
    for manifest in sorted(directory.glob("*/Cargo.toml")):
        crate = tomllib.loads(manifest.read_text())
        name = crate["package"]["name"]
        library = crate.get("lib", {}).get("name", name.replace("-", "_"))
        file = manifest.parent / "src/lib.rs"
        lines = (line.removeprefix("//!").strip() for line in file.read_text().splitlines())
        first = " ".join(itertools.takewhile(bool, lines))
        # Code in Markdown is code in reStructuredText with two marks; a link to an item is its name.
        text = re.sub(r"\[?(`[^`]+`)\]?(?:\([^)]*\))?", r"`\1`", first).replace("*", r"\*")
        text = re.sub(r"(``[^`]+``)(\w?)", lambda code: code[1] + (code[2] and f"\\ {code[2]}"), text)
        yield f"- `{name} <../rust/{library}/index.html>`__: {text}\n"


def _of_c(directory: Path) -> Iterator[str]:
    title = "C: mrc.h and mrc_ctl.h"
    yield f"{title}\n{'=' * len(title)}\n\nFrom the headers. "
    yield ":doc:`../c-interface` says how programs are compiled and what is supported.\n"
    for header, what in HEADERS.items():
        text = (directory / header).read_text()
        heading = f"{header}: {what}"
        yield f"\n{heading}\n{'-' * len(heading)}\n"
        for each in declarations(text):
            yield from _one(each)


def _one(each: Declaration) -> Iterator[str]:
    if each.kind == "function":
        signature = re.sub(r"\s+", " ", each.code.partition("{")[0].removesuffix(";")).strip()
        yield f"\n.. c:function:: {signature.removeprefix('static inline ')}\n"
    else:
        yield f"\n.. c:{each.kind}:: {each.name}\n"
    if each.comment:
        lines = [re.sub(r"([*|`_\\])", r"\\\1", line) for line in each.comment.splitlines() if line.strip()]
        yield "\n" + "".join(f"   | {line}\n" for line in lines)
    if each.kind != "function":
        yield "\n   .. code-block:: c\n\n"
        yield "".join(f"      {line}\n" if line else "\n" for line in each.code.expandtabs(4).splitlines())
