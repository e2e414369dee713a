#!/usr/bin/env bash
# Fuzzes one target: fuzz/run.sh TARGET SECONDS [libFuzzer options...]
#
# Builds with stable Rust: stable codegen options give access to LLVM's coverage instrumentation, which libFuzzer needs.
# cargo-fuzz would add AddressSanitizer on nightly, which finds nothing in crates that forbid unsafe code.
#
# FUZZ_COMPARES=0 leaves out the tracing of comparisons: twice the executions, with less guidance. For long runs after
# guided ones, whose inputs it uses.
#
# New inputs are kept in fuzz/target/corpus/TARGET. The seeds are in fuzz/corpus/TARGET, which is not written to.
# An input that fails is written to fuzz/artifacts/TARGET. Run it again with
#   fuzz/run.sh TARGET 0 fuzz/artifacts/TARGET/crash-...
set -euo pipefail

if [[ $# -lt 2 || ! $2 =~ ^[0-9]+$ ]]; then
    echo "usage: fuzz/run.sh TARGET SECONDS [libFuzzer options or inputs...]" >&2
    exit 2
fi
target=$1 seconds=$2
shift 2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ $target == handshake ]]; then
    # The handshake is read by Python: its target needs no compiler, only the installed package.
    exec "$here/../.venv/bin/python" "$here/handshake.py" "$seconds"
fi
if [[ ! -f $here/fuzz_targets/$target.rs ]]; then
    echo "error: no fuzz target $target; there are: $(basename -s .rs -a "$here"/fuzz_targets/*.rs | paste -sd' ')" >&2
    exit 2
fi
if ! command -v "${CXX:-c++}" >/dev/null; then
    echo "error: libFuzzer needs a C++ compiler; install g++ or clang, or set CXX" >&2
    exit 1
fi

host=$(rustc -vV | sed -n 's/^host: //p')
build=${FUZZ_TARGET_DIR:-$here/target}
flags=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    --cfg fuzzing
)
if [[ ${FUZZ_COMPARES:-1} != 0 ]]; then
    flags+=(-Cllvm-args=-sanitizer-coverage-trace-compares)
fi
# With an explicit --target the flags do not apply to build scripts and procedural macros.
RUSTFLAGS="${flags[*]}" cargo build --quiet --locked --release --manifest-path "$here/Cargo.toml" \
    --target-dir "$build" --target "$host" --bin "$target"

found=$build/corpus/$target
mkdir -p "$found" "$here/artifacts/$target" "$here/corpus/$target"
binary=$build/$host/release/$target

if [[ $seconds == 0 ]]; then
    exec "$binary" "$@"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$binary" -max_total_time="$seconds" -artifact_prefix="$here/artifacts/$target/" -print_final_stats=1 \
    "$@" "$found" "$here/corpus/$target" 2>&1 | tee "$log"
# Without instrumentation libFuzzer still runs, but without guidance. That must not count as success.
if ! grep -q 'inline 8-bit counters' "$log"; then
    echo "error: $target was built without coverage instrumentation" >&2
    exit 1
fi
