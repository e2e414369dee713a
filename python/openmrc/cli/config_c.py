"""``openmrc config-c``: what a C compiler needs to know."""

from typing import Annotated

import typer

from openmrc import clibrary


def config_c(
    cflags: Annotated[bool, typer.Option("--cflags", help="Options for the compiler.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Options for the linker.")] = False,
    include_dir: Annotated[bool, typer.Option("--include-dir", help="The directory of the headers.")] = False,
    library_dir: Annotated[
        bool,
        typer.Option("--library-dir", help="A directory with all names of the library, and the headers."),
    ] = False,
    preload: Annotated[
        bool, typer.Option("--preload", help="The library to name in LD_PRELOAD for verbs programs.")
    ] = False,
) -> None:
    """Where the headers and libraries of the C interface are.

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
