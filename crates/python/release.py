"""Checks what `make release` has built, and writes its checksums: names, metadata, licences, contents.

An index refuses unknown classifiers and metadata that do not fit the standard. It takes everything else, and
a file's name only once. So what else could be wrong is found here.
"""

import argparse
import email
import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import linked
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
PYTHON = "cp311-abi3"
LICENCES = {
    *("MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
    *("ISC", "Unlicense", "Unicode-3.0", "Zlib"),
}
"""Of what is linked in: each lets a program be given on under Apache-2.0."""
LICENCE_FILES = ["LICENSE", "THIRD-PARTY-LICENSES"]
BUILT = {
    "_core.abi3.so",
    "lib/libopenmrc.so.0",
    "lib/libibverbs/libibverbs.so.1",
    *("include/mrc.h", "include/mrc_api_ver.h", "include/mrc_ctl.h", "include/mrc_ctl_api_ver.h"),
}
"""Files of the package in a wheel that are not in the repository."""


def main() -> int:
    """Prints what is wrong, a line for each; 0 if nothing is."""
    parser = argparse.ArgumentParser(description="Check a release before somebody uploads it.")
    parser.add_argument("directory", type=Path, help="where the source distribution and the wheels are")
    parser.add_argument("--targets", required=True, help="processors of the wheels, such as 'x86_64 aarch64'")
    parser.add_argument("--glibc", default="2.28", help="oldest glibc of the wheels")
    given = parser.parse_args()
    wrong = list(problems(given.directory, given.targets.split(), given.glibc))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if wrong:
        return 1
    files = sorted(path for path in given.directory.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (given.directory / "SHA256SUMS").write_text("".join(sums))
    print(f"{len(files)} files in {given.directory} can be uploaded; their checksums are in SHA256SUMS")
    return 0


def problems(directory: Path, targets: list[str], glibc: str) -> Iterator[str]:
    """What is wrong with the files of a release."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    platform = f"manylinux_{glibc.replace('.', '_')}"
    sdist = f"openmrc-{version}.tar.gz"
    wheels = {f"openmrc-{version}-{PYTHON}-{platform}_{target}.whl" for target in targets}
    found = {path.name for path in directory.iterdir()} - {"SHA256SUMS"}
    for name in sorted({sdist, *wheels} - found):
        yield f"{name} is missing"
    for name in sorted(found - {sdist, *wheels}):
        yield f"{name} is no file of a release of {', '.join(targets)}"
    crates = linked.linked()
    for crate in crates:
        if not free(crate.licence):
            yield f"{crate}, which is linked in, has the licence {crate.licence or 'none'}"
    for path, contents in (
        (linked.TEXTS, linked.texts(crates)),
        (linked.MATERIALS, linked.materials(crates)),
    ):
        if path.read_text() != contents:
            yield f"{path.name} is not that of Cargo.lock: python crates/python/linked.py writes it"
    if sdist in found:
        yield from (f"{sdist}: {what}" for what in _of_sdist(directory / sdist, version))
    for name in sorted(wheels & found):
        yield from (f"{name}: {what}" for what in _of_wheel(directory / name, version))


def _of_sdist(file: Path, version: str) -> Iterator[str]:
    root = f"openmrc-{version}"
    with tarfile.open(file) as archive:
        members = {member.name.removeprefix(f"{root}/"): member for member in archive if member.isfile()}
        info = archive.extractfile(members["PKG-INFO"]) if "PKG-INFO" in members else None
        if info is None:
            yield "there is no PKG-INFO"
        else:
            yield from _of_metadata(info.read(), version)
        yield from (f"{name} leads out of {root}" for name in archive.getnames() if not _below(name, root))
    yield from (f"{member.name} has an owner" for member in members.values() if member.uname or member.uid)
    yield from _strays(members)
    tracked = {name for name in _tracked() if not re.match(r"crates/(bench|perftest/examples)/", name)}
    package = {name for name in tracked if name.startswith("python/")}
    sources = {name for name in tracked if re.match(r"crates/[^/]+/(src|include|libibverbs)/", name)}
    needed = {*package, *sources, *("pyproject.toml", "Cargo.toml", "Cargo.lock", "README.md")}
    needed |= {*LICENCE_FILES, str(linked.MATERIALS.relative_to(ROOT))}
    yield from (f"{name} is missing" for name in sorted(needed - set(members)))
    yield from (
        f"{name} is not in the repository" for name in sorted(set(members) - _tracked() - {"PKG-INFO"})
    )


def _of_wheel(file: Path, version: str) -> Iterator[str]:
    info = f"openmrc-{version}.dist-info"
    with zipfile.ZipFile(file) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        copies = {f"licenses/{name}": ROOT / name for name in LICENCE_FILES}
        copies[f"sboms/{linked.MATERIALS.name}"] = linked.MATERIALS
        missing = [
            name for name in ("METADATA", *copies, "entry_points.txt") if f"{info}/{name}" not in names
        ]
        yield from (f"{info}/{name} is missing" for name in missing)
        if not missing:
            yield from _of_metadata(archive.read(f"{info}/METADATA"), version)
            for name, original in copies.items():
                if archive.read(f"{info}/{name}") != original.read_bytes():
                    yield f"its {original.name} is not that of the repository"
            if b"openmrc=openmrc.cli:script" not in archive.read(f"{info}/entry_points.txt").replace(
                b" ", b""
            ):
                yield "it has no command openmrc"
    expected = {name.removeprefix("python/") for name in _tracked() if name.startswith("python/openmrc/")}
    expected |= {f"openmrc/{name}" for name in BUILT}
    own = {name for name in names if not name.startswith(f"{info}/")}
    yield from (f"{name} is missing" for name in sorted(expected - own))
    yield from (f"{name} is neither in the repository nor built" for name in sorted(own - expected))


def _of_metadata(text: bytes, version: str) -> Iterator[str]:
    # Only the environment of the wheels has it.
    from trove_classifiers import classifiers

    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from (f"metadata: {error}" for error in group.exceptions)
        return
    if str(found.version) != version:
        yield f"metadata: version {found.version} is not {version} of Cargo.toml"
    if found.license_expression != "Apache-2.0" or found.license_files != LICENCE_FILES:
        yield f"metadata: licence {found.license_expression}, files {found.license_files}"
    if found.description_content_type is None or "markdown" not in found.description_content_type.lower():
        yield f"metadata: the description is {found.description_content_type}, not Markdown"
    described = found.description or email.message_from_bytes(text).get_payload()
    if "# openmrc" not in str(described):
        yield "metadata: the description is missing"
    for link in re.findall(r"\]\((?!https?://)([^)]*)\)", str(described)):
        yield f"metadata: the description has a link to {link}, which an index does not have"
    for each in found.classifiers or []:
        if each not in classifiers:
            yield f"metadata: {each!r} is no classifier of the index"


def free(expression: str) -> bool:
    """Whether one of the licences that one may choose of is among :data:`LICENCES`."""
    text = expression.replace("/", " OR ")
    parts = [part.strip("() ") for part in re.split(r"\bAND\b(?![^(]*\))", text)]
    return all(any(each.strip("() ") in LICENCES for each in part.split(" OR ")) for part in parts)


def _strays(names: object) -> Iterator[str]:
    for name in sorted(names):  # type: ignore[call-overload]
        if re.search(r"(^|/)(__pycache__|\.git|target|\.venv|\.make)/|\.(pyc|so|o|orig|part)$", name):
            yield f"{name} is no source"


def _below(name: str, root: str) -> bool:
    parts = PurePosixPath(name).parts
    return parts[0] == root and ".." not in parts


def _tracked() -> set[str]:
    """The files of the repository."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name}


if __name__ == "__main__":
    sys.exit(main())
