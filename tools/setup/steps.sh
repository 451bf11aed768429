# steps.sh: the steps of ./check. Each step is a function that prints to its log and fails by its
# exit status; its tests are counted from the log (count_results). Test scripts are found by where
# they stand, so that a new one is run without being listed here:
#   src, tests     meson tests (gcc, clang, asan, tsan)
#   tests/fuzz     libFuzzer targets, with seeds and dictionaries beside them
#   */run.sh       below tests: programs of their own, such as those that need npm
#   web/check.sh   the page

jobs=$(nproc)
# What `weir tune` left for whoever runs the check must not be in it.
export XDG_CACHE_HOME=$PWD/build-check/cache-home

list_steps() {
    echo format shell gcc clang man
    [ ! -d models ] || echo vectors
    echo asan tsan
    [ ! -f tests/fuzz/meson.build ] || echo fuzz
    echo portable
    find tests -name run.sh | sort | sed 's/^/script:/'
    [ ! -f web/check.sh ] || echo script:web/check.sh
}

# passed, failed and skipped tests of a log: cmocka's closing lines, node's, meson's own tests
# without either, and plain lines `N passed, N failed[, N skipped]`.
count_results() {
    awk '
        /\[  PASSED  \] [0-9]+ test/ { passed += $4 }
        /\[  FAILED  \] [0-9]+ test/ { failed += $4 }
        /\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
        /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
            passed += $1; failed += $3; skipped += $5
        }
        /^(# |ℹ )pass [0-9]+$/ { passed += $3 }
        /^(# |ℹ )fail [0-9]+$/ { failed += $3 }
        /^(# |ℹ )(skipped|todo|cancelled) [0-9]+$/ { skipped += $3 }
        END { print passed + 0, failed + 0, skipped + 0 }
    ' "$1"
}

tracked() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -- "$@"
    else
        find src include tests -name '*.[ch]'
    fi
}

step_format() {
    local files
    mapfile -t files < <(tracked 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]')
    clang-format --dry-run -Werror "${files[@]}" || return 1
    echo "${#files[@]} passed, 0 failed"
}

step_shell() {
    local passed=0 failed=0
    for file in demo check .ci/run $(find tests tools web -name '*.sh' -not -path '*/node_modules/*'); do
        if bash -n "$file"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}

# configure NAME [meson options]: a build directory, made anew when its options changed.
configure() {
    local dir="build-check/$1"
    shift
    if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/.options" 2>/dev/null)" = "$*" ]; then
        return 0
    fi
    rm -rf "$dir"
    meson setup "$dir" "$@" && printf '%s' "$*" >"$dir/.options"
}

# run_tests NAME [meson test options]: the tests of a build, and before it what of them is not built
# yet. What failed is shown in full.
run_tests() {
    local dir="build-check/$1"
    shift
    meson test -C "$dir" --print-errorlogs "$@" >"$dir/test.out" 2>&1
    local status=$?
    [ $status -eq 0 ] || sed -e 's/passed/p./; s/PASSED/P./; s/FAILED/F./' "$dir/test.out"
    python3 tools/setup/meson_counts.py "$dir" || return 1
    return $status
}

# The build that later steps use.
build_gcc() {
    configure gcc -Dwerror=true && ninja -C build-check/gcc
}

step_gcc() {
    build_gcc && run_tests gcc
}

# The other compiler: its warnings, and what it makes of the computing rooms. Other rooms have
# nothing that depends on a compiler; they run as gcc's and under sanitizers.
step_clang() {
    CC=clang configure clang -Dwerror=true && ninja -C build-check/clang &&
        run_tests clang --suite base --suite text --suite model --suite ops --suite load --suite forward
}

# Sanitizers: traces need lines and no variables, whose description takes a third of the compiler's
# time.
sanitizer_options="-Dbuildtype=debugoptimized -Dc_args=-g1 -Db_lundef=false"

step_asan() {
    # Without the test that reads the sources alone. One test more than cores: some wait for time to pass.
    # shellcheck disable=SC2086 # a list
    configure asan $sanitizer_options -Db_sanitize=address,undefined &&
        ninja -C build-check/asan &&
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 \
            run_tests asan --timeout-multiplier 10 --num-processes $((jobs + 1)) --no-suite house &&
        build-check/asan/weir score --model models/tiny-k3 --vectors vectors/tiny-k3 --case short-austen
}

# Not the tests whose program has one thread.
step_tsan() {
    # shellcheck disable=SC2086 # a list
    configure tsan $sanitizer_options -Db_sanitize=thread &&
        TSAN_OPTIONS=halt_on_error=1 \
            run_tests tsan --timeout-multiplier 10 --num-processes $((jobs + 1)) --no-suite one-thread --suite base --suite cache --suite engine --suite serve
}

# Every model against its golden numbers, on both columns.
step_vectors() {
    local passed=0 failed=0
    build_gcc || return 1
    for dir in vectors/*/; do
        local name
        name=$(basename "$dir")
        [ -d "models/$name" ] || continue
        for compute in exact fast; do
            echo "== $name, $compute"
            if build-check/gcc/weir score --model "models/$name" --vectors "$dir" --compute $compute; then
                passed=$((passed + 1))
            else
                failed=$((failed + 1))
            fi
        done
    done
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}

step_man() {
    local passed=0 failed=0
    build_gcc || return 1
    # Names of two words have a dash in them here.
    for command in "" $(build-check/gcc/weir help | sed -n 's/^  \([a-z]*\) \{0,1\}\([a-z]*\)  .*/\1-\2/p' |
        sed 's/-$//'); do
        # shellcheck disable=SC2086 # none for the page of the program itself
        build-check/gcc/weir help --man $command >build-check/page.1 || return 1
        if mandoc -Tlint -Wwarning build-check/page.1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}

# One target: seeds and dictionary of its own; what it finds on the way stays in build-check.
fuzz_one() {
    local name
    name=$(basename "$1")
    local corpus="build-check/corpus/$name" short=${name#fuzz_} more='' output
    mkdir -p "$corpus"
    for seeds in "tests/fuzz/seeds/$name" "tests/fuzz/corpus/$short"; do
        [ ! -d "$seeds" ] || more="$more $seeds"
    done
    [ ! -f "tests/fuzz/$short.dict" ] || more="$more -dict=tests/fuzz/$short.dict"
    # shellcheck disable=SC2086 # may be none
    output=$("$1" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=10 -rss_limit_mb=4096 \
        -print_final_stats=1 "$corpus" $more 2>&1)
    local status=$? verdict='1 passed, 0 failed'
    [ $status -eq 0 ] || verdict='0 passed, 1 failed'
    printf '== %s\n%s\n%s\n' "$name" "$(tail -n 30 <<<"$output")" "$verdict"
    return $status
}

step_fuzz() {
    # shellcheck disable=SC2086 # a list
    CC=clang configure fuzz -Dfuzz=true -Dtests=false $sanitizer_options \
        -Db_sanitize=address,undefined && ninja -C build-check/fuzz || return 1
    find build-check/fuzz/tests/fuzz -maxdepth 1 -type f -executable | sort |
        xargs -P "$jobs" -I TARGET bash -c '. tools/setup/steps.sh; fuzz_one TARGET'
}

step_portable() {
    tests/cli/portable.sh
}

# A program of its own: WEIR names the binary; the last lines hold the count.
step_script() {
    need_node || return 1
    if grep -q chromium "$(dirname "$1")"/* 2>/dev/null; then
        # shellcheck disable=SC2086 # a list
        need_packages $browser_packages || return 1
    fi
    build_gcc || return 1
    WEIR="$root/build-check/gcc/weir" WEIR_SOURCE_ROOT="$root" bash "$1" "$root/build-check/gcc"
}
