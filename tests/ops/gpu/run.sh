#!/usr/bin/env bash
# Compiles the kernels for GPUs and looks at what came out: nothing that should be in registers kept in memory beyond what is
# allowed below, matrix instructions where products of tiles are. For AMD with the newest clang that is here (CLANG=... for
# another), for NVIDIA where there is an nvcc (NVCC=... or in the path or in /usr/local/cuda). What cannot be compiled here is
# said and not counted.
# Usage: run.sh [BUILD_DIR]
set -uo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$root" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # check WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "wrong: $what"
    fi
}

# Each leaves its output, or none, in $work; nvcc also what ptxas says.
compile_amd() { # FILE
    local out
    out="$work/$(basename "$1" .c).$arch.s"
    "$clang" -x hip -nogpuinc -nogpulib "--offload-arch=$arch" --cuda-device-only -O2 -Wall -Werror -Isrc -S -o "$out" "$1" ||
        rm -f "$out"
}
compile_nvidia() { # FILE
    local out
    out="$work/$(basename "$1" .c).cubin"
    "$nvcc" -x cu -std=c++17 -O3 -arch=sm_90a -cubin -Werror all-warnings -Xptxas -v -Isrc -o "$out" "$1" 2>"${out%.cubin}.ptxas" ||
        rm -f "$out"
}
compile_all() { # FUNCTION, of every kernel's file, as many at a time as there are cores
    printf '%s\n' src/ops/gpu/kernels/*.c | xargs -P "$(nproc)" -I FILE bash -c "$1 FILE"
}
export work
export -f compile_amd compile_nvidia

# Bytes of registers that a kernel may spill on NVIDIA.
allowed_spill() {
    case $1 in
    weir_sample) echo 4 ;;
    weir_gemm_192) echo 120 ;; # only for devices without products of warpgroups
    *) echo 0 ;;
    esac
}
# Kernels that multiply tiles.
tiles='weir_skinny_(fp8_)?[0-9]+(_two|_wide)?|weir_experts_(up|down)(_many)?(_bf16|_wg)?|weir_mla_split(_fp8)?(_16|_48)?|weir_mla_attend(_wg)?|weir_gemm_(128|192|wg(_[0-9]+)?)|weir_kda_(chunk|states)_([0-9]+|wg)'

# --- AMD
# Bytes of memory that a thread may have, where registers should do.
allowed_scratch() {
    case $1 in
    weir_kda_step_* | weir_kda_verify_*) echo 32 ;; # three pointers of the record, of which a thread takes one
    *) echo 0 ;;
    esac
}
# Scalar registers that may wait in lanes of vector ones (seen with clang 19): what the branches of unrolled loops need.
allowed_scalars() {
    case $1 in
    weir_mla_split_fp8) echo 150 ;;
    weir_kda_chunk_128) echo 37 ;;
    weir_combine_1) echo 30 ;;
    weir_mix_norm) echo 10 ;;
    weir_kda_verify_64) echo 6 ;;
    *) echo 0 ;;
    esac
}
# Of assembly, each kernel with its bytes of memory, spilt scalar and vector registers, and matrix instructions.
amd_kernels() {
    awk '/^weir_[a-z0-9_]+:/ { of = substr($1, 1, length($1) - 1) }
        /^\tv_mfma_/ { products[of]++ }
        /^    \.name: +weir_/ { kernel = $2 }
        /^    \.private_segment_fixed_size:/ { bytes = $2 }
        /^    \.sgpr_spill_count:/ { scalars = $2 }
        /^    \.vgpr_spill_count:/ { print kernel, bytes, scalars, $2, products[kernel] + 0 }' "$1"
}
newest_clang() {
    for name in clang-22 clang-21 clang-20 clang-19 clang; do
        command -v $name && return
    done
}
clang=${CLANG:-$(newest_clang)}
for arch in gfx942 gfx950; do
    if ! "$clang" --target=amdgcn-amd-amdhsa -mcpu=$arch -nogpulib -x c -c /dev/null -o "$work/none.o" 2>/dev/null; then
        echo "NOT CHECKED: $arch, ${clang:-no clang} does not compile for it"
        continue
    fi
    export arch clang
    compile_all compile_amd
    for file in src/ops/gpu/kernels/*.c; do
        out="$work/$(basename "$file" .c).$arch.s"
        check "$file for $arch compiles" [ -f "$out" ]
        [ -f "$out" ] || continue
        check "$file for $arch holds kernels" [ -n "$(amd_kernels "$out")" ]
        while read -r kernel bytes scalars vectors products; do
            check "$kernel for $arch keeps $bytes bytes in memory" [ "$bytes" -le "$(allowed_scratch "$kernel")" ]
            check "$kernel for $arch spills $scalars scalar registers" [ "$scalars" -le "$(allowed_scalars "$kernel")" ]
            check "$kernel for $arch spills $vectors vector registers" [ "$vectors" -eq 0 ]
            # Products of warpgroups are NVIDIA's.
            if [[ $file != *_wgmma.c ]] && grep -qxE "$tiles" <<<"$kernel"; then
                check "$kernel for $arch has $products matrix instructions" [ "$products" -gt 0 ]
            fi
        done < <(amd_kernels "$out")
    done
done

# --- NVIDIA
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ ! -x "$nvcc" ]; then
    echo "NOT CHECKED: NVIDIA, there is no nvcc here"
else
    export nvcc
    compile_all compile_nvidia
    for file in src/ops/gpu/kernels/*.c; do
        out="$work/$(basename "$file" .c).cubin" said="$work/$(basename "$file" .c).ptxas"
        check "$file for sm_90a compiles" [ -f "$out" ]
        if [ ! -f "$out" ]; then
            cat "$said"
            continue
        fi
        while read -r kernel spilt; do
            check "$kernel for sm_90a spills $spilt bytes" [ "$spilt" -le "$(allowed_spill "$kernel")" ]
        done < <(awk -F"'" '/Compiling entry function/ { kernel = $2 }
            /bytes spill stores/ { split($0, part, ","); split(part[2], n, " "); print kernel, n[1] }' "$said")
        while read -r kernel count; do
            if grep -qxE "$tiles" <<<"$kernel"; then
                check "$kernel for sm_90a has $count matrix instructions" [ "$count" -gt 0 ]
            fi
        done < <(python3 tests/ops/gpu/opcodes.py "$out")
    done
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
