# Sourced by every check: strict mode, the repository as the working directory, the one way to skip, and what several need.
# Does not know any check.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Where rustup puts cargo, for shells that do not have it in PATH.
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
# What is built once and never edited gains nothing from incremental compilation, and pays for it in time and disk.
# In fewer parts it optimises less of it twice.
if [ -n "${CI:-}" ]; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
    export CARGO_PROFILE_DEV_CODEGEN_UNITS="${CARGO_PROFILE_DEV_CODEGEN_UNITS:-4}"
fi
# How much of what is random or exhaustive is run: all of it, or, where CI is set and everything has to end in one go on two
# cores, what the second says. `CI= .ci/mutants` runs all.
all_or() {
    if [ -n "${CI:-}" ]; then echo "$2"; else echo "$1"; fi
}
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"

# A check that cannot run says what is missing and why, and ends with 77: `.ci/run` shows that apart from "passed".
skip() {
    echo "SKIPPED: $1, $2"
    exit 77
}

# A component of the toolchain, installed if it can be.
need_component() {
    local component="$1" probe="$2"
    $probe --version >/dev/null 2>&1 && return
    if command -v rustup >/dev/null; then
        rustup component add "$component" || true
    fi
    $probe --version >/dev/null 2>&1 || skip "$component" "it is not installed and 'rustup component add $component' did not help"
}

# A tool that cargo builds, and that mostly waits for what it starts: unoptimised it is built in less than half the processor time (gungraun-runner: 90 s
# for 215).
install_tool() {
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug "$@"
}

# A command that README.md promises must stand there word by word.
promised() {
    grep -qxF -- "$1" README.md || { echo "README.md has no line '$1': the promise and this check must be one"; exit 1; }
}

# For checks that run the tests for long: Cargo.toml has the tests' own packages unoptimised and the rest at level 1, which pays where they run
# once. What the allocators are made of, the test kit among it, is at level 3; the packages whose tests these are at level 1. To build what `.ci/mutants` runs of these two and the
# kit took 340 s of processor time so, 178 with them unoptimised and 421 at level 3, and a part of the soak then ran for 21, 45 and 20 s.
optimise_tests() {
    local package
    optimised=(--config profile.dev.package.millpond.opt-level=1 --config profile.dev.package.millpond-plug.opt-level=1)
    for package in millpond-core millpond-sim millpond-trace millpond-testkit hashbrown parking_lot; do
        optimised+=(--config "profile.dev.package.$package.opt-level=3")
    done
    cargo() {
        command cargo "${optimised[@]}" "$@"
    }
}

# A build that can plant bugs, in a folder of its own. Before `optimise_tests`.
with_planted_build() {
    # A choice made outside would be planted in the runs that are to be right.
    unset MILLPOND_PLANT
    export RUSTFLAGS="${RUSTFLAGS:-} --cfg millpond_mutants" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/planted"
}

# Where CI is set, what runs long takes the build of `.ci/mutants`, with no bug planted: an optimised build of its own takes four minutes of processor
# time. The tests that plant bugs are `planting`, to be skipped. `CI= .ci/soak` has a build of its own.
planting=()
share_planted_build() {
    if [ -n "${CI:-}" ]; then
        with_planted_build
        export MILLPOND_NOTHING_PLANTED=1
        planting=(--skip every_leak_ --skip every_bug_)
    fi
}

# What is built beside `target`, where builds there do not wait for it.
beside="${CARGO_TARGET_DIR:-target}/beside"

# The programs of xtask that judge and look things up, built as they are, whatever this check builds for and with what flags.
xtask() {
    env -u RUSTFLAGS -u RUSTC_BOOTSTRAP -u LLVM_PROFILE_FILE CARGO_TARGET_DIR="$beside" cargo run -q -p xtask -- "$@"
}

# Builds by a cargo command, `executables "on_gpu cuda_backend" cargo test .. --no-run`, and says where these targets' executables are, a line
# each in that order. Fails, and says what there is, where one is not among them.
executables() {
    local names said status=0
    read -ra names <<<"$1"
    shift
    said="$(mktemp)"
    { "$@" --message-format=json-render-diagnostics >"$said" && xtask executables "$said" "${names[@]}"; } || status=$?
    rm -f "$said"
    return "$status"
}

# The stand-in driver as `cargo test --workspace` builds it, with the features that all packages together ask for, so that nothing beneath it
# is built twice. Before `optimise_tests`. Its path goes to MILLPOND_FAKE_LIBCUDA.
build_driver() {
    cargo test --workspace --test hazards --no-run
    driver_is_built
}

driver_is_built() {
    export MILLPOND_FAKE_LIBCUDA="$PWD/${CARGO_TARGET_DIR:-target}/debug/deps/libfake_libcuda.so"
    [ -e "$MILLPOND_FAKE_LIBCUDA" ] || { echo "cargo built no $MILLPOND_FAKE_LIBCUDA"; return 1; }
}

# The stand-in driver for checks that run beside those that build in `target`: built where no other check waits for it, nor finds it
# being replaced. Its path goes to MILLPOND_FAKE_LIBCUDA.
need_driver() {
    env -u RUSTC_BOOTSTRAP CARGO_TARGET_DIR="$beside" cargo build -p millpond-fake-libcuda
    export MILLPOND_FAKE_LIBCUDA="$PWD/$beside/debug/libfake_libcuda.so"
}

# What cargo builds from here on is built with AddressSanitizer, for the host, whose name goes to `target`. 77 where the
# toolchain has no runtime for it.
with_asan() {
    target="$(rustc -vV | sed -n 's/^host: //p')"
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
    if ! echo 'fn main() {}' | rustc -Zsanitizer=address --target "$target" -o target/asan_probe - 2>/dev/null; then
        echo "SKIPPED: AddressSanitizer, this toolchain has no runtime for $target"
        return 77
    fi
}
