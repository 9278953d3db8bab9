#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, and no Rust: the tests on the real device, the proof that they can fail, the main job with
# blocks written and checked by our kernels, and what a call costs beside other allocators.
#   benches/gpu.sh [quick] [STAGE...]
#   suite     tests/cuda_backend.rs, tests/cudarc_types.rs and tests/on_gpu.rs, this with plain segments and with windows
#   flight    the in-flight test, thousands of rounds
#   planted   the same test in a build with planted bugs, which it must find (benches/planted)
#   memcheck  compute-sanitizer's memcheck over the suite, fewer rounds
#   soak      ten million pairs and a million frees behind another stream: memory of process and device stays flat (benches/gpu/gpu_soak.rs)
#   replay    every recorded workload on four streams, every byte of every block checked
#   examples  the examples to read first, on the simulated device and on this one, and what they say of it
#   demos     a peer's fault and ours, side by side (benches/peers/), by the requirements of tests/architecture/requirements.rs
#   costs     what plain allocations and what frees by events or host functions cost; what a second stream takes of the device
#             where a first one has freed as much, beside two peers (benches/gpu/gpu_costs.rs, benches/peers/t13.py)
#   transfers copies, their overlap with kernels, launches and waits beside plain CUDA and cudarc (benches/gpu/gpu_transfers)
#   pinned    how long pinned memory takes to grow and to go back, by our pool, by the driver's own call and by one thread (benches/gpu/gpu_pinned.rs)
#   feed      a training loop fed from the host beside the same loop with all data there, and a dataset larger than the device may have (benches/gpu/gpu_feed.rs)
#   cublas    cuBLAS by cudarc's safe calls on arrays of ours, several streams, compared with the CPU (examples/with_cublas.rs)
#   plug      PyTorch and CuPy on our C library, beside their own allocators, and threads, streams and captures from C (plug/gpu)
#   ends      forks, exits and a closed library with memory alive and work pending, from C, Python and PyTorch (plug/gpu/ends_checks.*)
#   footprint what PyTorch's programs take of the device and how long a step takes, ours beside PyTorch's own allocators, and the trials D5, D6, D9 and
#             D10 (plug/gpu/footprint.py); MILLPOND_JSON names a file for each run's figures, MILLPOND_FOOTPRINT holds further arguments
#   nccl      all-reduces of two GPUs over our memory, registered and not, beside PyTorch's own allocator (plug/gpu/nccl_checks.py); SKIPPED with one GPU
#   taken     what the recorded workloads take of the device and how long their calls take, ours beside the driver's pool (benches/gpu/gpu_taken.rs); then
#             what they take through the C interface, beside PyTorch's allocators (benches/peers/taken.py)
#   rivals    without the GPU: ours beside three host allocators, on this machine's cores (benches/churn.rs and its siblings)
#   worlds    without the GPU, and only when named: every program of six operations, for which this machine has the cores
#   bench     ours and cudarc's alloc; then cudaMallocAsync and PyTorch's native allocator, on the same work files
# All of them but worlds if none is named. Needs target/gpu, which benches/gpu-pack makes; one that was built from other sources, or of which
# a file was replaced since, is refused (benches/gpu-fresh). The peers need CUDA's headers and g++, PyTorch's
# its Python package; what is missing is said and left out. Every stage has a limit in time and says PASS, FAIL or SKIPPED;
# ends with 1 if one failed, with 2 if there is no GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
size=""
if [ "${1:-}" = quick ]; then
    size=quick
    shift
fi
stages=("$@")
[ "${#stages[@]}" -gt 0 ] || stages=(suite flight planted memcheck soak replay examples demos costs transfers pinned feed cublas plug ends nccl footprint taken rivals bench)
bin="$PWD/target/gpu"
[ -x "$bin/gpu_bench" ] || { echo "$bin/gpu_bench is not here: run benches/gpu-pack where there is Rust"; exit 1; }
# Says the commit. What a stale pack measured would be reported for another source.
benches/gpu-fresh check "$bin" || exit 1
# A kernel not yet loaded would wait for running ones at its first launch.
export CUDA_MODULE_LOADING=EAGER
unset MILLPOND_PLANT
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
shopt -s nullglob

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || { echo "no GPU here"; exit 2; }
# Two threads of one core are not two cores, and a quota is not a machine: the figures for many threads need this line.
lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\)|Thread\(s\) per core|Core\(s\) per socket|NUMA node\(s\))' | tr -s ' ' | paste -sd ';'
echo "cores for this process: $(nproc); quota: $(cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo unknown)"

cuda="${CUDA_HOME:-/usr/local/cuda}"
[ -d "$cuda/include" ] || cuda="$(dirname "$(dirname "$(command -v nvcc || echo /nowhere/bin/nvcc)")")"

# Seconds, then a command. 124 if it took longer.
within() {
    local seconds="$1"
    shift
    timeout -k 10 "$seconds" "$@"
}

stage_suite() {
    local failed=0 status test
    for test in "$bin"/test-*; do
        echo "--- $(basename "$test")"
        within 200 "$test" --test-threads=1 || { status=$?; echo "$(basename "$test") ended with $status"; failed=1; }
    done
    echo "--- test-on_gpu with virtual memory beneath the pools"
    MILLPOND_VIRTUAL=auto within 200 "$bin/test-on_gpu" --test-threads=1 || { echo "ended with $?"; failed=1; }
    return "$failed"
}

# Seconds, a test's full name: runs it alone, shows what it says, and fails too if there is no such test or it was skipped.
one_test() {
    local log="$here/one.log" status=0
    within "$1" "$bin/test-on_gpu" --exact "$2" --test-threads=1 --nocapture >"$log" 2>&1 || status=$?
    cat "$log"
    [ "$status" = 0 ] && grep -q '1 passed' "$log" && ! grep -q '^SKIPPED' "$log"
}

in_flight=flight::patterns_survive_while_everything_is_in_flight

stage_flight() {
    local rounds=3000
    [ -n "$size" ] && rounds=1000
    MILLPOND_ROUNDS="$rounds" one_test 150 "$in_flight"
}

stage_planted() {
    benches/planted "$bin/mutant-on_gpu" 20 "$in_flight"
}

stage_memcheck() {
    local sanitizer found="" failed=0 test log="$here/memcheck.log"
    for sanitizer in "$(command -v compute-sanitizer)" "$cuda"/bin/compute-sanitizer "$cuda"/compute-sanitizer/compute-sanitizer \
        /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        if [ -n "$sanitizer" ] && [ -x "$sanitizer" ]; then
            found="$sanitizer"
            break
        fi
    done
    [ -n "$found" ] || { echo "SKIPPED: compute-sanitizer is not installed (it comes with the CUDA toolkit)"; return 77; }
    "$found" --version | tail -1
    # Under the tool three calls wait for all kernels that wait for none otherwise: a stream's destruction, a wait for a
    # per-thread default stream, and a wait for one stream while another one is held. These tests make one of them beside a
    # closed gate, or show that it does not wait; `suite` runs them without the tool. A test that is not named here and makes
    # such a call fails when its gate's time is over. And a module that goes ends a capture under the tool, which it does not
    # otherwise.
    local waiting=(driver_behaviour::a_context_event_covers_every_kind_of_stream driver_behaviour::a_destroyed_stream_goes_on
        driver_behaviour::everything_else_waits_for_nothing reuse::a_free_by_an_unknown_stream_is_respected
        requirements::c07_per_thread_default_streams_are_known_by_their_ids requirements::d03_a_stream_dropped_with_work_pending
        requirements::s06_stream_wait_is_local
        transfers::a_shared_source_lives_until_every_copy_is_done
        a_capture_by_other_code_survives_the_end_of_the_backend)
    local skips=() name all
    all="$(for test in "$bin"/test-*; do "$test" --list --format terse; done)"
    for name in "${waiting[@]}"; do
        grep -q "^$name: test$" <<<"$all" || { echo "no test is called $name: the list of those left out is out of date"; failed=1; }
        skips+=(--skip "$name")
    done
    echo "$(grep -c ': test$' <<<"$all") tests; left out, because under the tool a call of theirs waits, or ends a capture:"
    printf '    %s\n' "${waiting[@]}"
    # Eight minutes in all: the last test has what the others left.
    local end=$((SECONDS + 470)) left
    for test in "$bin"/test-*; do
        left=$((end - SECONDS))
        echo "--- $(basename "$test") under memcheck"
        [ "$left" -ge 5 ] || { echo "not run: the stage's time is over"; failed=1; continue; }
        # Refusals of the driver are what many of the tests ask for: a call's error code is their business. What is judged
        # is every access by a kernel, every free, and what is left at the end.
        MILLPOND_ROUNDS=2 within "$left" "$found" --tool memcheck --leak-check full --report-api-errors no --error-exitcode 9 \
            "$test" --test-threads=1 "${skips[@]}" >"$log" 2>&1
        local status=$?
        grep -E '^test result|^test .*FAILED|ERROR SUMMARY|LEAK SUMMARY|panicked at' "$log"
        # A run without one finished test checked nothing, whatever the tool says of it.
        if [ "$status" != 0 ] || ! grep -q 'ERROR SUMMARY: 0 errors' "$log" || ! grep -qE '^test result: ok\. [1-9]' "$log"; then
            echo "ended with $status after $((470 - end + SECONDS)) s of the stage; tests that ended well: $(grep -cE '^test .*ok$' "$log"); the last line of a test:"
            grep '^test ' "$log" | tail -1
            echo "the first that was said:"
            grep -m 40 -E '^=========|panicked at' -A 1 "$log"
            failed=1
        fi
    done
    return "$failed"
}

# On the simulated device first, so that a failure there is not taken for the GPU's.
stage_soak() {
    local failed=0 where log="$here/soak.txt" status
    for where in "" gpu; do
        status=0
        # shellcheck disable=SC2086  # words or none
        within 240 "$bin/gpu_soak" $where ${where:+$size} >"$log" || status=$?
        tables "$log"
        if [ "$status" != 0 ] || [ "$(grep -c '^PASS' "$log")" != 2 ]; then
            echo "gpu_soak $where ended with $status"
            failed=1
        fi
    done
    return "$failed"
}

stage_replay() {
    local failed=0 trace traces=(tests/traces/*.csv.gz)
    [ "${#traces[@]}" -gt 0 ] || { echo "no traces in tests/traces"; return 1; }
    for trace in "${traces[@]}"; do
        within 120 "$bin/millpond" replay "$trace" --device cuda:0 --streams 4 --uses 10% 2>&1 | head -4
        [ "${PIPESTATUS[0]}" = 0 ] || { echo "FAILED: $trace"; failed=1; }
    done
    return "$failed"
}

# Each compares what the device computed with what it should have. One that ran elsewhere than requested prints that.
stage_examples() {
    local failed=0 example where log="$here/example.log" status said
    for example in first_steps two_streams share_between_streams; do
        for where in "" gpu; do
            echo "--- $example $where"
            said='^ordering: .* none out of order'
            [ -z "$where" ] || said='^ran on CUDA device 0'
            status=0
            # shellcheck disable=SC2086  # one word or none
            within 60 "$bin/$example" $where >"$log" 2>&1 || status=$?
            cat "$log"
            if [ "$status" != 0 ]; then
                echo "$example $where ended with $status"
                failed=1
            elif ! grep -q "$said" "$log"; then
                echo "$example $where does not say where it ran: $said"
                failed=1
            fi
        done
    done
    return "$failed"
}

# A peer's script with its runs, then the same here. Fails if ours does; 77 if the peer was not shown beside it.
demo() {
    local script="$1" runs="$2" status=0
    if ! command -v python3 >/dev/null; then
        echo "SKIPPED: the peer, there is no python3"
        status=77
    else
        PYTHONDONTWRITEBYTECODE=1 within 90 python3 "benches/peers/$script.py" "$runs" || status=$?
        [ "$status" = 0 ] || [ "$status" = 77 ] || echo "the peer's script ended with $status"
    fi
    MILLPOND_DEMO=1 one_test 60 "requirements::$3" || return 1
    [ "$status" = 0 ] || return 77
}

# Half a comparison is none: without the peer the stage is skipped, whatever ours did well. D4's attempts are the tutorial's.
stage_demos() {
    local failed=0 missing=0 runs=40 row status
    [ -n "$size" ] && runs=16
    while read -r row; do
        status=0
        # shellcheck disable=SC2086  # three words
        demo $row </dev/null || status=$?
        case $status in
            0) ;;
            77) missing=77 ;;
            *) failed=1 ;;
        esac
    done <<ROWS
d01 $((runs * 3 / 2)) d01_a_pinned_source_dropped_in_flight
d02 $runs d02_an_array_dropped_under_a_reader
d03 $((runs * 2)) d03_a_stream_dropped_with_work_pending
d04 100 d04_the_target_of_a_copy_is_read_behind_the_wait
ROWS
    [ "$failed" = 0 ] || return 1
    return "$missing"
}

# Shows a file of tables, which blank lines part, each in columns of its own. In awk, as below: the programs of xtask are not on this machine, and
# nothing is judged here.
tables() {
    if command -v column >/dev/null; then
        awk -v RS= -v columns="column -t -s'$(printf '\t')'" '{ print | columns; close(columns); print "" }' "$1"
    else
        cat "$1"
    fi
}

# Ours first; the peers' lines belong to the table that it ends with. As for the demonstrations, half a comparison is none.
stage_costs() {
    local status=0 peers=0
    within 60 "$bin/gpu_costs" $size >"$here/costs.txt" || status=$?
    if ! command -v python3 >/dev/null; then
        echo "SKIPPED: T13's peers, there is no python3"
        peers=77
    else
        PYTHONDONTWRITEBYTECODE=1 within 90 python3 benches/peers/t13.py >>"$here/costs.txt" || peers=$?
        [ "$peers" = 0 ] || [ "$peers" = 77 ] || echo "the peers' script ended with $peers"
    fi
    tables "$here/costs.txt"
    [ "$status" = 0 ] || return "$status"
    [ "$peers" = 0 ] || return 77
}

# From a file of tables: those whose heading begins with one of these words (an extended expression), as Markdown.
as_markdown() {
    awk -v RS= -v wanted="^($2)[ \t]" '$0 ~ wanted {
        lines = split($0, line, "\n")
        for (i = 1; i <= lines; i++) {
            fields = split(line[i], field, "\t")
            if (i == 1) print field[1] ":\n"
            row = rule = "|"
            for (f = 2; f <= fields; f++) { row = row " " field[f] " |"; rule = rule "---|" }
            print row
            if (i == 1) print rule
        }
        print ""
    }' "$1"
}

# Runs gpu_NAME for at most so many seconds; a third argument is a command whose output stands behind the tables. An aim that is missed fails the stage; the tables stand above the aims.
measured() {
    local status=0 name="$1"
    # shellcheck disable=SC2086  # one word or none
    within "$2" "$bin/gpu_$name" $size >"$here/$name.txt" || status=$?
    tables "$here/$name.txt"
    if [ $# -gt 2 ]; then "$3"; fi
    [ "$status" = 3 ] && echo "an aim was missed"
    return "$status"
}

# Rows T9 and P1 once more, as benches/RESULTS.md has them.
for_the_results() {
    echo "for benches/RESULTS.md:"
    as_markdown "$here/transfers.txt" 'T9|P1'
}

stage_transfers() {
    measured transfers 150 for_the_results
}

stage_pinned() {
    measured pinned 200
}

stage_feed() {
    measured feed 200
}

stage_taken() {
    # shellcheck disable=SC2086  # one word or none
    within 120 "$bin/gpu_taken" $size tests/traces/*.csv.gz >"$here/taken.txt" || return
    tables "$here/taken.txt"
    command -v python3 >/dev/null || { echo "SKIPPED: there is no python3"; return 77; }
    MILLPOND_LIBRARY="$bin/libmillpond.so" PYTHONPATH=plug/python PYTHONDONTWRITEBYTECODE=1 \
        within 400 python3 benches/peers/taken.py tests/traces/*.csv.gz
}

stage_nccl() {
    command -v python3 >/dev/null || { echo "SKIPPED: there is no python3"; return 77; }
    MILLPOND_LIBRARY="$bin/libmillpond.so" PYTHONPATH=plug/python PYTHONDONTWRITEBYTECODE=1 within 300 python3 plug/gpu/nccl_checks.py
}

stage_footprint() {
    local more=()
    command -v python3 >/dev/null || { echo "SKIPPED: there is no python3"; return 77; }
    [ -z "${MILLPOND_JSON:-}" ] || more+=(--json "$MILLPOND_JSON")
    [ -z "$size" ] || more+=(--rounds 1)
    # shellcheck disable=SC2086  # words or none
    MILLPOND_LIBRARY="$bin/libmillpond.so" PYTHONPATH=plug/python PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
        within 560 python3 plug/gpu/footprint.py "${more[@]}" ${MILLPOND_FOOTPRINT:-}
}

stage_plug() {
    local failed=0 program status
    command -v python3 >/dev/null || { echo "SKIPPED: there is no python3"; return 77; }
    for program in torch_checks cupy_checks; do
        status=0
        MILLPOND_LIBRARY="$bin/libmillpond.so" PYTHONPATH=plug/python PYTHONDONTWRITEBYTECODE=1 \
            within 240 python3 "plug/gpu/$program.py" || status=$?
        [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
    done
    # The same library from C, on the driver alone.
    if ! command -v cc >/dev/null; then
        echo "SKIPPED: driver_checks, there is no C compiler"
        return "$failed"
    fi
    # The name that the program looks for is one of the version.
    ln -sf libmillpond.so "$bin/libmillpond.so.0.1"
    cc -std=gnu11 -O1 -Wall -Iplug plug/gpu/driver_checks.c -o "$here/driver_checks" -L"$bin" -lmillpond -ldl -lpthread -Wl,-rpath,"$bin" ||
        return 1
    status=0
    # shellcheck disable=SC2086  # one word or none
    within 120 "$here/driver_checks" $size || status=$?
    [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
    return "$failed"
}

stage_ends() {
    local failed=0 status program
    ln -sf libmillpond.so "$bin/libmillpond.so.0.1"
    if command -v cc >/dev/null; then
        local flags=(-std=gnu11 -O1 -Wall -Iplug plug/gpu/ends_checks.c -ldl -lpthread)
        cc "${flags[@]}" -o "$here/ends_linked" -L"$bin" -lmillpond -Wl,-rpath,"$bin" && cc "${flags[@]}" -DOPENED -o "$here/ends_opened" || return 1
        for program in ends_linked ends_opened; do
            status=0
            # shellcheck disable=SC2086  # one word or none
            MILLPOND_LIBRARY="$bin/libmillpond.so" within 280 "$here/$program" $size || status=$?
            [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
        done
    else
        echo "SKIPPED: ends from C, there is no C compiler"
    fi
    if command -v python3 >/dev/null; then
        status=0
        MILLPOND_LIBRARY="$bin/libmillpond.so" PYTHONPATH=plug/python PYTHONDONTWRITEBYTECODE=1 within 280 python3 plug/gpu/ends_checks.py || status=$?
        [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
    else
        echo "SKIPPED: ends from Python, there is no python3"
    fi
    return "$failed"
}

# cuBLAS comes with the toolkit or with a Python package; neither is on the loader's path by itself.
stage_cublas() {
    local log="$here/cublas.log" status=0 library libraries=("$cuda"/lib64/libcublas.so* "$cuda"/targets/*/lib/libcublas.so*
        /usr/local/cuda*/lib64/libcublas.so* /usr/lib/x86_64-linux-gnu/libcublas.so*
        /usr/lib/python3*/*-packages/nvidia/*/lib/libcublas.so*)
    if command -v python3 >/dev/null; then
        mapfile -t -O "${#libraries[@]}" libraries < <(python3 -c '
import glob, site, sys
for path in {*sys.path, *site.getsitepackages()}:
    print(*glob.glob(path + "/nvidia/*/lib/libcublas.so*"), sep="\n")' 2>/dev/null | grep .)
    fi
    library="${libraries[0]:-}"
    [ -z "$library" ] || echo "cuBLAS: $library"
    # cuBLAS finds libcublasLt beside itself; the system's path comes first.
    LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${library%/*}" within 120 "$bin/with_cublas" >"$log" 2>&1 || status=$?
    cat "$log"
    [ "$status" = 0 ] && grep -q '^SKIPPED' "$log" && return 77
    return "$status"
}

stage_rivals() {
    local failed=0
    within 60 "$bin/bench-churn" --bench || failed=1
    within 60 "$bin/bench-traces" --bench --traces tests/traces || failed=1
    # One lock for sixteen threads takes its time.
    within 150 "$bin/bench-threads" --bench || failed=1
    return "$failed"
}

# From MILLPOND_WORLDS_PART on, as many of the parts as there is time for: the next run goes on behind the last that was printed.
stage_worlds() {
    local parts="${MILLPOND_WORLDS_PARTS:-40}" part="${MILLPOND_WORLDS_PART:-1}" end=$((SECONDS + ${MILLPOND_WORLDS_SECONDS:-500}))
    local status
    while [ "$part" -le "$parts" ] && [ "$SECONDS" -lt "$end" ]; do
        MILLPOND_WORLDS="${MILLPOND_WORLDS:-6}" MILLPOND_WORLDS_PART="$part" MILLPOND_WORLDS_PARTS="$parts" \
            "$bin/small_worlds" --nocapture 2>&1 | grep -E '^small worlds|FAILED|panicked'
        status="${PIPESTATUS[0]}"
        [ "$status" = 0 ] || return "$status"
        part=$((part + 1))
    done
}

# Builds benches/peers.cpp into the temporary folder under a name, with more options for the compiler.
build_peers() {
    local to="$1"
    shift
    g++ -O2 -std=c++20 benches/peers.cpp -I"$cuda/include" -L"$cuda/lib64" -L"$cuda/targets/x86_64-linux/lib" "$@" -lcudart \
        -lpthread -ldl -Wl,-rpath,"$cuda/lib64" -o "$to"
}

# Half a comparison is none here too: without one of the peers the stage is skipped, whatever the others said.
stage_bench() {
    local failed=0 missing=0 rows="$here/rows.tsv" torch abi how
    cp "$bin"/work/* "$here" && gunzip -f "$here"/*.gz
    within 200 "$bin/gpu_bench" run "$here" $size >>"$rows" || failed=1
    if ! command -v g++ >/dev/null; then
        echo "SKIPPED: peers, there is no g++"
        missing=77
    else
        if build_peers "$here/peers-async"; then
            within 120 "$here/peers-async" "$here" async $size >>"$rows" || failed=1
            for how in "" :unmanaged; do
                within 120 "$here/peers-async" "$here" "$bin/libmillpond.so$how" $size >>"$rows" || failed=1
            done
        else
            echo "SKIPPED: cudaMallocAsync, it does not compile here"
            missing=77
        fi
        torch="$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)"
        if [ -z "$torch" ]; then
            echo "SKIPPED: PyTorch, python3 has no torch"
            missing=77
        # Not every build of PyTorch has the same ABI for strings: ask it.
        elif abi="$(python3 -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))')" &&
            build_peers "$here/peers-torch" -DWITH_TORCH -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$torch/include" -L"$torch/lib" -lc10_cuda \
                -lc10 -Wl,-rpath,"$torch/lib"; then
            within 120 "$here/peers-torch" "$here" torch $size >>"$rows" || failed=1
        else
            echo "SKIPPED: PyTorch, its headers do not compile here"
            missing=77
        fi
    fi
    {
        printf 'pattern\tallocator\tns/call\tp50\tp99\tworst\tMiB taken, or in all\n'
        sort -t"$(printf '\t')" -k1,1 -s "$rows"
    } | column -t -s"$(printf '\t')" 2>/dev/null || sort "$rows"
    [ "$failed" = 0 ] || return 1
    return "$missing"
}

failed=0
summary=""
for stage in "${stages[@]}"; do
    if ! declare -F "stage_$stage" >/dev/null; then
        echo "no stage $stage: $(declare -F | sed -n 's/^declare -f stage_//p' | paste -sd ' ')"
        exit 1
    fi
    echo
    echo "=== $stage"
    start=$SECONDS status=0
    "stage_$stage" || status=$?
    case $status in
        0) verdict=PASS ;;
        77) verdict=SKIPPED ;;
        *)
            verdict=FAIL
            failed=1
            ;;
    esac
    line="$verdict $stage ($((SECONDS - start)) s)"
    echo "$line"
    summary="$summary$line"$'\n'
done
echo
printf '%s' "$summary"
exit "$failed"
