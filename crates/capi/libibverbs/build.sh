#!/bin/sh
# Builds libibverbs.so.1 into the directory that is given, with the compiler in CC. It is C because rustc cannot give
# functions versions.
set -eu
here=$(dirname "$0")
mkdir -p "$1"
# CC may have options.
# shellcheck disable=SC2086
${CC:-cc} -shared -fPIC -O2 -Wall -Wextra -Werror -s -Wl,-soname,libibverbs.so.1 -Wl,-z,nodelete \
    -Wl,--version-script="$here/libibverbs.map" "$here/libibverbs.c" -ldl -o "$1/libibverbs.so.1"
