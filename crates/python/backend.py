"""The build back end: maturin, and with it the C library, which is a second crate and so none of maturin's.

`pip install .` and `make wheel` build wheels with it, and so does pip from a source distribution.
"""

import gzip
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = Path("python/openmrc")
CRATE = Path("crates/capi")
TIME = 1153704088
"""Of all files, as maturin has it."""


def build_wheel(directory: str, config: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """A wheel with the C library and its headers."""
    _build_c_library()
    return maturin.build_wheel(directory, config, metadata)


def build_editable(directory: str, config: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """The same for `pip install --editable`: library and headers are in the source tree."""
    _build_c_library()
    return maturin.build_editable(directory, config, metadata)


def build_sdist(directory: str, config: dict[str, Any] | None = None) -> str:
    """A source distribution from which everything can be built: maturin's, and the crate of the C library."""
    name: str = maturin.build_sdist(directory, config)
    archive = Path(directory, name)
    completed = archive.with_suffix(".part")
    # Without the time of now in the archive's head: built twice, it is the same.
    with (
        tarfile.open(archive) as found,
        gzip.GzipFile(completed, "wb", mtime=TIME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        root = name.removesuffix(".tar.gz")
        for member in found:
            contents = found.extractfile(member)
            data = contents.read() if contents is not None else None
            if data is not None and member.name == f"{root}/Cargo.toml":
                data = _with_c_crate(data.decode()).encode()
                member.size = len(data)
            made.addfile(member, io.BytesIO(data) if data is not None else None)
        for file in _sources():
            made.add(file, f"{root}/{file}", filter=_anonymous)
    completed.replace(archive)
    return name


def _build_c_library() -> None:
    """Builds the library and puts it and its headers where the wheel takes them from."""
    command = "cargo build --locked --release --package openmrc-capi"
    # maturin's own way to find Rust, or to fetch it.
    environment = maturin._get_env()
    messages = [*command.split(), "--message-format", "json-render-diagnostics"]
    built = subprocess.run(messages, stdout=subprocess.PIPE, env=environment, text=True, check=False)
    if built.returncode != 0:
        raise SystemExit(f"error: {command} failed; a Rust toolchain and a C compiler are needed")
    (library,) = _artifacts(built.stdout)
    for kind in ("lib", "include"):
        shutil.rmtree(PACKAGE / kind, ignore_errors=True)
        (PACKAGE / kind).mkdir()
    # A new file: one that a process has mapped must not change.
    shutil.copy(library, PACKAGE / "lib" / "libopenmrc.so.0")
    # It leads programs that load it by name to the library; rustc cannot give functions versions.
    forwarder = PACKAGE / "lib" / "libibverbs" / "libibverbs.so.1"
    forwarder.parent.mkdir()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    made = subprocess.run([*compiler, f"@{CRATE}/libibverbs/flags", "-o", forwarder], check=False)
    if made.returncode != 0:
        raise SystemExit(f"error: {compiler[0]} could not build {forwarder.name}")
    for header in sorted((CRATE / "include").glob("*.h")):
        shutil.copy(header, PACKAGE / "include")


def _artifacts(messages: str) -> set[str]:
    """The shared libraries of cargo's messages about the crate."""
    lines = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    return {
        file
        for line in lines
        if line.get("reason") == "compiler-artifact" and line["target"]["name"] == "openmrc"
        for file in line["filenames"]
        if file.endswith(".so")
    }


def _with_c_crate(manifest: str) -> str:
    """The manifest of the workspace, which maturin has reduced to the crates that it needs, with one more."""
    member = '"crates/python"'
    if manifest.count(member) != 1:
        raise SystemExit(f"error: Cargo.toml of the source distribution does not name {member} once")
    return manifest.replace(member, f'{member}, "{CRATE}"')


def _sources() -> Iterator[Path]:
    """The files of the crate, in an order that does not depend on the disk."""
    for file in sorted(CRATE.rglob("*")):
        if file.is_file():
            yield file


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the user and the time of this machine; the time is the one that maturin gives all files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = TIME
    return member
