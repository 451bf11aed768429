#!/usr/bin/env bash
# Puts into a folder what tests/ops/gpu/device.sh needs on a machine that has a GPU and its driver and nothing else.
# Usage: package.sh OUT [BUILD_DIR]     NVCC=... names another nvcc, ARCH=sm_90 another architecture
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../../.." && pwd)
build=${2:-$root/build}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
cd "$root"
ninja -C "$build" tests/ops/gpu/gpu_device tests/ops/gpu/gpu_device_experts
cp "$build/tests/ops/gpu/gpu_device" "$build/tests/ops/gpu/gpu_device_experts" "$out/"
for file in src/ops/gpu/kernels/*.c; do
    module="$out/$(basename "$file" .c).cubin"
    # What has not changed since is kept: ptxas takes its time.
    if [ ! -f "$module" ] || [ -n "$(find src/ops/gpu -name '*.[ch]' -not -path '*/emu/*' -not -path '*/kernels/*.c' -newer "$module")" ] ||
        [ "$file" -nt "$module" ]; then
        "$nvcc" -x cu -std=c++17 -O3 "-arch=${ARCH:-sm_90a}" -cubin -lineinfo -Isrc -o "$module" "$file"
    fi
done
ls -l "$out"
