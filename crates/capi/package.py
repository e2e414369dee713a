"""Packages of the C library for users without Python: a tarball, and a .deb where dpkg-deb is.

`make c-package` calls it with what cargo and the C compiler have built. Both packages have the same files:
headers, `libopenmrc.so.0`, the `libibverbs.so.1` that leads to it, in a directory of its own, `openmrc.pc`,
the page of the interface, and an example. The tarball works from wherever it is unpacked.
"""

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SONAME = "libopenmrc.so.0"
OTHER_NAMES = ("libmrc.so", "lib_mrc.so", "libnv_mrc.so", "libopenmrc-verbs.so")
"""Names by which programs load the library; beside libibverbs.so.1, so a vendor's library stays as it is."""
PROCESSORS = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}
"""By e_machine of an ELF file: names that the GNU tools and Debian have for a processor."""
TIME = 1153704088
"""Of all files: a package that is built twice is the same. The wheel's files have it too."""


def main() -> int:
    """Writes the packages and prints their paths; 1 and a line on standard error if it cannot."""
    parser = argparse.ArgumentParser(description="Pack the C library for users without Python.")
    parser.add_argument("--library", type=Path, required=True, help="libopenmrc.so as cargo built it")
    parser.add_argument("--libibverbs", type=Path, required=True, help="libibverbs.so.1 that leads to it")
    parser.add_argument("--out", type=Path, required=True, help="directory for the packages")
    given = parser.parse_args()
    try:
        for package in packages(given.library, given.libibverbs, given.out):
            print(package)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def packages(library: Path, libibverbs: Path, out: Path) -> list[Path]:
    """Makes the tarball, and the .deb if there is dpkg-deb; their paths.

    Raises:
        OSError: if a file cannot be read or written.
        ValueError: if the library is not a 64-bit ELF file of a processor that is known.
        subprocess.CalledProcessError: if dpkg-deb fails.
    """
    version = _version()
    machine, debian = _processor(library)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory() as temporary:
        name = f"openmrc-c-{version}-linux-{machine}"
        tree = Path(temporary, name)
        _fill(tree, "lib", library, libibverbs)
        # pcfiledir is the directory of the file itself.
        _write_pc(tree / "lib" / "pkgconfig", version, "${pcfiledir}/../..", "${prefix}/lib", with_rpath=True)
        made.append(_tarball(tree, out / f"{name}.tar.gz"))
        if shutil.which("dpkg-deb") is not None:
            tree = Path(temporary, "debian")
            libraries = f"lib/{machine}-linux-gnu"
            _fill(tree / "usr", libraries, library, libibverbs)
            _write_pc(
                tree / "usr" / libraries / "pkgconfig", version, "/usr", f"/usr/{libraries}", with_rpath=False
            )
            made.append(_debian(tree, version, debian, library, out))
    return made


def _fill(prefix: Path, libraries: str, library: Path, libibverbs: Path) -> None:
    """Puts everything but the file of pkg-config in its place."""
    headers, directory, documents = (
        prefix / "include" / "openmrc",
        prefix / libraries,
        prefix / "share" / "doc" / "openmrc-c",
    )
    by_name = directory / "openmrc"
    for each in (headers, by_name, documents):
        each.mkdir(parents=True)
    for header in sorted((ROOT / "crates" / "capi" / "include").glob("*.h")):
        _copy(header, headers / header.name)
    _copy(library, directory / SONAME)
    (directory / "libopenmrc.so").symlink_to(SONAME)
    # It looks for the library in the directory above its own.
    _copy(libibverbs, by_name / "libibverbs.so.1")
    (by_name / "libibverbs.so").symlink_to("libibverbs.so.1")
    for name in OTHER_NAMES:
        (by_name / name).symlink_to(f"../{SONAME}")
    _copy(ROOT / "LICENSE", documents / "copyright")
    _copy(ROOT / "docs" / "c-interface.md", documents / "c-interface.md")
    _copy(ROOT / "tests" / "c" / "hello.c", documents / "hello.c")


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _write_pc(directory: Path, version: str, prefix: str, libraries: str, *, with_rpath: bool) -> None:
    directory.mkdir()
    rpath = " -Wl,-rpath,${libdir}" if with_rpath else ""
    (directory / "openmrc.pc").write_text(
        f"""prefix={prefix}
libdir={libraries}
includedir=${{prefix}}/include/openmrc
preload=${{libdir}}/{SONAME}
verbsdir=${{libdir}}/openmrc

Name: openmrc
Description: Multipath Reliable Connection in software: mrc.h, mrc_ctl.h and verbs
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}}{rpath} -lopenmrc
"""
    )


def _tarball(tree: Path, target: Path) -> Path:
    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = TIME
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    partial = target.with_suffix(".part")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=TIME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        archive.add(tree, tree.name, filter=anonymous)
    partial.replace(target)
    return target


def _debian(tree: Path, version: str, architecture: str, library: Path, out: Path) -> Path:
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"""Package: openmrc-c
Version: {version}
Architecture: {architecture}
Maintainer: openmrc <openmrc@localhost>
Section: libs
Priority: optional
Depends: libc6 (>= {_glibc(library)}), libgcc-s1
Recommends: libibverbs-dev
Description: Multipath Reliable Connection in software, for C
 Headers and library of MRC (mrc.h, mrc_ctl.h), and verbs for unmodified
 programs that write, over UDP sockets: no NIC, no kernel module.
"""
    )
    # The dynamic linker finds a library of a package only after ldconfig has run.
    (control / "triggers").write_text("activate-noawait ldconfig\n")
    for path in (control, *tree.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    target = out / f"openmrc-c_{version}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(target)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(TIME)},
    )
    return target


def _version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("Cargo.toml names no version")
    return found[1]


def _processor(library: Path) -> tuple[str, str]:
    with library.open("rb") as file:
        begin = file.read(20)
    processor = PROCESSORS.get(int.from_bytes(begin[18:20], "little"))
    if not begin.startswith(b"\x7fELF\x02\x01") or processor is None:
        raise ValueError(f"{library} is no library for x86-64 or AArch64")
    return processor


def _glibc(library: Path) -> str:
    """The newest version of the C library whose functions it uses."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"{major}.{minor}"


if __name__ == "__main__":
    sys.exit(main())
