"""``openmrc config-c``: what a C compiler needs to know."""

from typing import Annotated

import typer

from openmrc import clibrary


def config_c(
    cflags: Annotated[bool, typer.Option("--cflags", help="Print the compiler's options.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Print the linker's options.")] = False,
    include_dir: Annotated[
        bool, typer.Option("--include-dir", help="Print the directory of the headers.")
    ] = False,
    library_dir: Annotated[
        bool,
        typer.Option(
            "--library-dir",
            help="Print a directory with the library under all of its names, and the headers.",
        ),
    ] = False,
    preload: Annotated[
        bool, typer.Option("--preload", help="Print the library to name in LD_PRELOAD for verbs programs.")
    ] = False,
) -> None:
    """Show where the headers and libraries of the C interface are.

    cc $(openmrc config-c --cflags) program.c $(openmrc config-c --libs)

    verbs.h comes from Debian's libibverbs-dev or Fedora's rdma-core-devel. Without options all of it is
    listed.
    """
    everything = not (cflags or libs or include_dir or library_dir or preload)
    directory = clibrary.library_directory()
    said = {
        "cflags": (cflags, f"-I{clibrary.include_directory()}"),
        "libs": (libs, f"-L{directory} -Wl,-rpath,{directory} -lmrc"),
        "include-dir": (include_dir, str(clibrary.include_directory())),
        "library-dir": (library_dir, str(directory)),
        "preload": (preload, clibrary.preload() if preload or everything else ""),
    }
    if everything:
        for name, (_, text) in said.items():
            print(f"{name:12} {text}")
    else:
        print(" ".join(text for wanted, text in said.values() if wanted))
