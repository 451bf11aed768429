/* dialect_wgmma.h: products of four waves (wgmma) for NVIDIA sm_90a. Included by dialect_cuda.h
 * alone. What they mean is written in dialect.h.
 *
 * Descriptors: a panel's rows of 128 bytes are swizzled over 1024, eight rows. Row by row (k runs
 * along rows) the second offset is from eight rows to the next eight, and a step of 16 k is 32
 * bytes inside the swizzle. Read across (k runs down the rows) the first offset is from a panel to
 * the next, the second from eight k to the next eight. */
#ifndef WEIR_OPS_GPU_DIALECT_WGMMA_H
#define WEIR_OPS_GPU_DIALECT_WGMMA_H

#define GPU_WARPGROUPS 1

/* Barrier 0 is that of the block. */
#define gpu_part_barrier(PART, THREADS)                                                            \
    asm volatile("bar.sync %0, %1;" ::"n"((int)(PART)), "n"((int)(THREADS)) : "memory")
#define gpu_more_registers(N)  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N))
#define gpu_fewer_registers(N) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N))

GPU_FN void gpu_gate_set(uint64_t *gate, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(gpu_shared_address(gate)), "r"(count)
                 : "memory");
}
GPU_FN void gpu_gate_arrive(uint64_t *gate) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(
                     gpu_shared_address(gate))
                 : "memory");
}
GPU_FN void gpu_gate_arrive_copied(uint64_t *gate) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(gpu_shared_address(gate))
                 : "memory");
}
GPU_FN void gpu_copy_bulk(void *shared, const void *global, uint32_t bytes, uint64_t *gate) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], "
                 "%1, [%0];\n" ::"r"(gpu_shared_address(gate)),
                 "r"(bytes), "r"(gpu_shared_address(shared)), "l"(global)
                 : "memory");
}
GPU_FN void gpu_gate_wait(uint64_t *gate, uint32_t parity) {
    asm volatile("{\n.reg .pred open;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 open, [%0], %1;\n"
                 "@!open bra again;\n}\n" ::"r"(gpu_shared_address(gate)),
                 "r"(parity)
                 : "memory");
}

/* Boxes. A map must lie in global memory; it is made in shared memory, field by field from zeros.
 */
struct __align__(128) gpu_map {
    uint32_t word[32];
};
GPU_FN gpu_map *gpu_map_place(uint32_t n) {
    static __device__ gpu_map maps[256][GPU_MAPS_MOST];
    uint32_t multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return &maps[multiprocessor % 256][n];
}
GPU_FN void gpu_map_make(gpu_map *scratch, uint32_t n, const uint16_t *from, uint32_t cols,
                         uint32_t rows, uint64_t row_bytes, uint32_t steps, uint64_t step_bytes,
                         uint32_t high) {
    const uint32_t at = gpu_shared_address(scratch);
    scratch->word[gpu_lane()] = 0;
    __syncwarp();
    if (gpu_lane() == 0)
        asm volatile(
            "{\n.reg .b32 one;\nmov.b32 one, 1;\n"
            "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n"
            "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 2;\n" /* one less than it is */
            "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %7;\n"
            "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %8;\n"
            "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 2, one;\n"
            "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %2;\n"
            "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %3;\n"
            "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 2, %4;\n"
            "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %5;\n"
            "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 1, %6;\n"
            "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, one;\n"
            "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, one;\n"
            "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 2, one;\n"
            "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], 10;\n" /* BF16 */
            "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;\n"
            "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;\n" /* 128 bytes */
            "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;\n}\n" /* zeros */
            ::"r"(at),
            "l"(from), "r"(cols), "r"(rows), "r"(steps), "l"(row_bytes), "l"(step_bytes), "r"(64),
            "r"(high)
            : "memory");
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync."
                 "aligned [%0], [%1], 128;" ::"l"(gpu_map_place(n)),
                 "r"(at)
                 : "memory");
}
GPU_FN const gpu_map *gpu_map_made(uint32_t n) {
    const gpu_map *map = gpu_map_place(n);
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    return map;
}
GPU_FN void gpu_copy_box(uint16_t *panel, const gpu_map *map, uint32_t col, uint32_t row,
                         uint32_t step, uint64_t *gate) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(gpu_shared_address(panel)),
                 "l"(map), "r"(col), "r"(row), "r"(step), "r"(gpu_shared_address(gate))
                 : "memory");
}
GPU_FN void gpu_copy_box_to_all(uint16_t *panel, const gpu_map *map, uint32_t col, uint32_t row,
                                uint32_t step, uint64_t *gate, uint32_t members) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes."
        "multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(gpu_shared_address(panel)),
        "l"(map), "r"(col), "r"(row), "r"(step), "r"(gpu_shared_address(gate)),
        "h"((uint16_t)((1u << members) - 1))
        : "memory");
}
GPU_FN void gpu_gate_expect(uint64_t *gate, uint32_t bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], "
                 "%1;\n}\n" ::"r"(gpu_shared_address(gate)),
                 "r"(bytes)
                 : "memory");
}
GPU_FN void gpu_gate_arrive_at(uint64_t *gate, uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(gpu_shared_address(gate)),
        "r"(rank)
        : "memory");
}
GPU_FN void gpu_gates_seen(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GPU_FN uint32_t gpu_f16_pair(float lo, float hi) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}
GPU_FN uint32_t gpu_f16_codes(uint32_t w, const bool upper) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)(upper ? w >> 16 : w)));
    return pair;
}

GPU_FN uint64_t gpu_wg_descriptor(uint32_t address, uint32_t panel_bytes) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(panel_bytes >> 4) << 16 |
           (address & 0x3FFFF) >> 4;
}
GPU_FN uint64_t gpu_wg_along(const uint16_t *panel, uint32_t k) {
    return gpu_wg_descriptor(gpu_shared_address(panel) + k * 32, 16);
}
GPU_FN uint64_t gpu_wg_across(const uint16_t *panel, uint32_t k, uint32_t panel_bytes) {
    return gpu_wg_descriptor(gpu_shared_address(panel) + k * 2048, panel_bytes);
}
/* Step k of panels of `rows` rows, one behind the other, along and down them: a constant beside the
 * first one's. */
GPU_FN uint64_t gpu_wg_step(const uint16_t *panels, uint32_t k, uint32_t rows) {
    return gpu_wg_along(panels, 0) + (k / 4 * rows * 128 + k % 4 * 32) / 16;
}
GPU_FN uint64_t gpu_wg_down(const uint16_t *panels, uint32_t k) {
    return gpu_wg_across(panels, 0, 16) + k * (2048 / 16);
}

GPU_FN void gpu_wg_seen(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Sums that are on their way must stay where they are: each is named in front of the first product
 * and behind the wait, so that no copy of one is made in between. */
GPU_FN void gpu_wg_hold(float *sum, const uint32_t n) {
    GPU_UNROLL
    for (uint32_t i = 0; i < n; i++)
        asm volatile("" : "+f"(sum[i])::"memory");
}
GPU_FN void gpu_wg_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_FN void gpu_wg_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#define gpu_wg_wait(N) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory")

#define WG_4(C, I)     "+f"(C[I]), "+f"(C[I + 1]), "+f"(C[I + 2]), "+f"(C[I + 3])
#define WG_8(C, I)     WG_4(C, I), WG_4(C, I + 4)
#define WG_SUMS_8(C)   WG_4(C, 0)
#define WG_SUMS_16(C)  WG_SUMS_8(C), WG_4(C, 4)
#define WG_SUMS_24(C)  WG_SUMS_16(C), WG_4(C, 8)
#define WG_SUMS_32(C)  WG_SUMS_24(C), WG_4(C, 12)
#define WG_SUMS_40(C)  WG_SUMS_32(C), WG_4(C, 16)
#define WG_SUMS_48(C)  WG_SUMS_40(C), WG_4(C, 20)
#define WG_SUMS_56(C)  WG_SUMS_48(C), WG_4(C, 24)
#define WG_SUMS_64(C)  WG_SUMS_56(C), WG_4(C, 28)
#define WG_SUMS_72(C)  WG_SUMS_64(C), WG_4(C, 32)
#define WG_SUMS_80(C)  WG_SUMS_72(C), WG_4(C, 36)
#define WG_SUMS_88(C)  WG_SUMS_80(C), WG_4(C, 40)
#define WG_SUMS_96(C)  WG_SUMS_88(C), WG_4(C, 44)
#define WG_SUMS_104(C) WG_SUMS_96(C), WG_4(C, 48)
#define WG_SUMS_112(C) WG_SUMS_104(C), WG_4(C, 52)
#define WG_SUMS_120(C) WG_SUMS_112(C), WG_4(C, 56)
#define WG_SUMS_128(C) WG_SUMS_120(C), WG_4(C, 60)
#define WG_SUMS_176(C) WG_SUMS_128(C), WG_8(C, 64), WG_8(C, 72), WG_8(C, 80)
#define WG_SUMS_192(C) WG_SUMS_176(C), WG_8(C, 88)
#define WG_NAMES_8     "%0, %1, %2, %3"
#define WG_NAMES_16    WG_NAMES_8 ", %4, %5, %6, %7"
#define WG_NAMES_24    WG_NAMES_16 ", %8, %9, %10, %11"
#define WG_NAMES_32    WG_NAMES_24 ", %12, %13, %14, %15"
#define WG_NAMES_40    WG_NAMES_32 ", %16, %17, %18, %19"
#define WG_NAMES_48    WG_NAMES_40 ", %20, %21, %22, %23"
#define WG_NAMES_56    WG_NAMES_48 ", %24, %25, %26, %27"
#define WG_NAMES_64    WG_NAMES_56 ", %28, %29, %30, %31"
#define WG_NAMES_72    WG_NAMES_64 ", %32, %33, %34, %35"
#define WG_NAMES_80    WG_NAMES_72 ", %36, %37, %38, %39"
#define WG_NAMES_88    WG_NAMES_80 ", %40, %41, %42, %43"
#define WG_NAMES_96    WG_NAMES_88 ", %44, %45, %46, %47"
#define WG_NAMES_104   WG_NAMES_96 ", %48, %49, %50, %51"
#define WG_NAMES_112   WG_NAMES_104 ", %52, %53, %54, %55"
#define WG_NAMES_120   WG_NAMES_112 ", %56, %57, %58, %59"
#define WG_NAMES_128   WG_NAMES_120 ", %60, %61, %62, %63"
#define WG_NAMES_176                                                                               \
    WG_NAMES_128                                                                                   \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
    "%82, %83, %84, %85, %86, %87"
#define WG_NAMES_192 WG_NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"

/* F0 to F4: the numbers of the operands behind the sums. */
#define WG_PRODUCTS(N, F0, F1, F2, F3, F4)                                                         \
    GPU_FN void wg_rows_##N(float *c, const uint16_t *a, const uint16_t *b, uint32_t k,            \
                            bool add) {                                                            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " F2 ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_##N     \
                     "}, " F0 ", " F1 ", p, 1, 1, 0, 0;\n}\n"                                      \
                     : WG_SUMS_##N(c)                                                              \
                     : "l"(N > 48 ? gpu_wg_along(a, k) : gpu_wg_step(a, k, 64)),                   \
                       "l"(N > 48 ? gpu_wg_along(b, k) : gpu_wg_step(b, k, N)), "r"((int)add));    \
    }                                                                                              \
    GPU_FN void wg_columns_##N(float *c, const uint16_t *a, const uint16_t *b, uint32_t k,         \
                               uint32_t k_b) {                                                     \
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_##N     \
                     "}, " F0 ", " F1 ", p, 1, 1, 1, 0;\n}\n"                                      \
                     : WG_SUMS_##N(c)                                                              \
                     : "l"(gpu_wg_down(a, k)), "l"(gpu_wg_step(b, k_b, N)));                       \
    }                                                                                              \
    GPU_FN void wg_values_##N(float *c, gpu_u4 a, const uint16_t *b, uint32_t k, uint32_t rows) {  \
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_##N     \
                     "}, {" F0 ", " F1 ", " F2 ", " F3 "}, " F4 ", p, 1, 1, 1;\n}\n"               \
                     : WG_SUMS_##N(c)                                                              \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w),                                     \
                       "l"(gpu_wg_across(b, k, rows * 128)));                                      \
    }
/* A from registers, B as for rows. Steps are added to a descriptor, which is formed once. */
#define WG_ROWS_OF(N, F0, F1, F2, F3, F4, F5)                                                      \
    GPU_FN void wg_rows_of_##N(float *c, gpu_u4 a, const uint16_t *b, uint32_t k, bool add) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " F5 ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_##N     \
                     "}, {" F0 ", " F1 ", " F2 ", " F3 "}, " F4 ", p, 1, 1, 0;\n}\n"               \
                     : WG_SUMS_##N(c)                                                              \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w),                                     \
                       "l"(gpu_wg_along(b, 0) + (k / 4 * N * 8 + k % 4 * 2)), "r"((int)add));      \
    }
/* The same of 16 columns. The upper half of a descriptor is the same for all,
 * 1 << 30 and 1024 / 16: so fewer registers hold them. */
#define WG_ROWS_OF_16(NAME, TYPE)                                                                  \
    GPU_FN void NAME(float *c, gpu_u4 a, const uint16_t *b, uint32_t k, bool add) {                \
        asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %13, 0;\n"                    \
                     "mov.b64 b, {%12, 0x40000040};\n"                                             \
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {" WG_NAMES_16  \
                     "}, {%8, %9, %10, %11}, b, p, 1, 1, 0;\n}\n"                                  \
                     : WG_SUMS_16(c)                                                               \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w),                                     \
                       "r"((uint32_t)gpu_wg_along(b, 0) + (k / 4 * 16 * 128 + k % 4 * 32) / 16),   \
                       "r"((int)add));                                                             \
    }
WG_ROWS_OF_16(wg_rows_of_16, "bf16")
WG_ROWS_OF_16(wg_rows_of_f16_16, "f16")
WG_PRODUCTS(16, "%8", "%9", "%10", "%11", "%12")
WG_PRODUCTS(48, "%24", "%25", "%26", "%27", "%28")
WG_PRODUCTS(128, "%64", "%65", "%66", "%67", "%68")
WG_ROWS_OF(8, "%4", "%5", "%6", "%7", "%8", "%9")
WG_ROWS_OF(24, "%12", "%13", "%14", "%15", "%16", "%17")
WG_ROWS_OF(32, "%16", "%17", "%18", "%19", "%20", "%21")
WG_ROWS_OF(40, "%20", "%21", "%22", "%23", "%24", "%25")
WG_ROWS_OF(48, "%24", "%25", "%26", "%27", "%28", "%29")
WG_ROWS_OF(56, "%28", "%29", "%30", "%31", "%32", "%33")
WG_ROWS_OF(64, "%32", "%33", "%34", "%35", "%36", "%37")
WG_ROWS_OF(72, "%36", "%37", "%38", "%39", "%40", "%41")
WG_ROWS_OF(80, "%40", "%41", "%42", "%43", "%44", "%45")
WG_ROWS_OF(88, "%44", "%45", "%46", "%47", "%48", "%49")
WG_ROWS_OF(96, "%48", "%49", "%50", "%51", "%52", "%53")
WG_ROWS_OF(104, "%52", "%53", "%54", "%55", "%56", "%57")
WG_ROWS_OF(112, "%56", "%57", "%58", "%59", "%60", "%61")
WG_ROWS_OF(120, "%60", "%61", "%62", "%63", "%64", "%65")
WG_ROWS_OF(128, "%64", "%65", "%66", "%67", "%68", "%69")
/* Both from shared memory alone. */
#define WG_ROWS(N, F0, F1, F2)                                                                     \
    GPU_FN void wg_rows_##N(float *c, const uint16_t *a, const uint16_t *b, uint32_t k,            \
                            bool add) {                                                            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " F2 ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_##N     \
                     "}, " F0 ", " F1 ", p, 1, 1, 0, 0;\n}\n"                                      \
                     : WG_SUMS_##N(c)                                                              \
                     : "l"(gpu_wg_along(a, 0) + k * 2), "l"(gpu_wg_along(b, 0) + k * 2),           \
                       "r"((int)add));                                                             \
    }
WG_ROWS(64, "%32", "%33", "%34")
WG_ROWS(176, "%88", "%89", "%90")
WG_ROWS(192, "%96", "%97", "%98")

/* n: 16, 48, 64, 128, 176 or 192, a constant. */
GPU_FN void gpu_wg_rows(float *c, const uint32_t n, const uint16_t *a, const uint16_t *b,
                        uint32_t k, const bool add) {
    if (n == 16)
        wg_rows_16(c, a, b, k, add);
    else if (n == 48)
        wg_rows_48(c, a, b, k, add);
    else if (n == 64)
        wg_rows_64(c, a, b, k, add);
    else if (n == 128)
        wg_rows_128(c, a, b, k, add);
    else if (n == 176)
        wg_rows_176(c, a, b, k, add);
    else
        wg_rows_192(c, a, b, k, add);
}
/* Four 8 x 8 matrices of sums turn on their way; eight lanes say where the rows of one go. */
GPU_FN uint32_t gpu_panel(uint32_t row, uint32_t piece);
GPU_FN void gpu_wg_leave(uint16_t *panel, const float *c) {
    const uint32_t lane = gpu_lane();
    uint16_t *to = panel + gpu_panel(lane % 8 + lane / 16 * 8, gpu_wave() % 4 * 2 + lane / 8 % 2);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     gpu_shared_address(to)),
                 "r"(gpu_bf16_pair(c[0], c[1])), "r"(gpu_bf16_pair(c[2], c[3])),
                 "r"(gpu_bf16_pair(c[4], c[5])), "r"(gpu_bf16_pair(c[6], c[7]))
                 : "memory");
}

/* n: a multiple of 8 up to 128, a constant. */
GPU_FN void gpu_wg_rows_of(float *c, const uint32_t n, gpu_u4 a, const uint16_t *b, uint32_t k,
                           const bool add) {
    if (n == 8)
        wg_rows_of_8(c, a, b, k, add);
    if (n == 16)
        wg_rows_of_16(c, a, b, k, add);
    if (n == 24)
        wg_rows_of_24(c, a, b, k, add);
    if (n == 32)
        wg_rows_of_32(c, a, b, k, add);
    if (n == 40)
        wg_rows_of_40(c, a, b, k, add);
    if (n == 48)
        wg_rows_of_48(c, a, b, k, add);
    if (n == 56)
        wg_rows_of_56(c, a, b, k, add);
    if (n == 64)
        wg_rows_of_64(c, a, b, k, add);
    if (n == 72)
        wg_rows_of_72(c, a, b, k, add);
    if (n == 80)
        wg_rows_of_80(c, a, b, k, add);
    if (n == 88)
        wg_rows_of_88(c, a, b, k, add);
    if (n == 96)
        wg_rows_of_96(c, a, b, k, add);
    if (n == 104)
        wg_rows_of_104(c, a, b, k, add);
    if (n == 112)
        wg_rows_of_112(c, a, b, k, add);
    if (n == 120)
        wg_rows_of_120(c, a, b, k, add);
    if (n == 128)
        wg_rows_of_128(c, a, b, k, add);
}
GPU_FN void gpu_wg_rows_of_f16(float *c, const uint32_t n, gpu_u4 a, const uint16_t *b, uint32_t k,
                               const bool add) {
    if (n == 16)
        wg_rows_of_f16_16(c, a, b, k, add);
}
GPU_FN void gpu_wg_columns(float *c, const uint32_t n, const uint16_t *a, const uint16_t *b,
                           uint32_t k, uint32_t k_b) {
    if (n == 16)
        wg_columns_16(c, a, b, k, k_b);
    else if (n == 48)
        wg_columns_48(c, a, b, k, k_b);
    else
        wg_columns_128(c, a, b, k, k_b);
}
GPU_FN void gpu_wg_values(float *c, const uint32_t n, gpu_u4 a, const uint16_t *b, uint32_t k,
                          uint32_t rows) {
    if (n == 16)
        wg_values_16(c, a, b, k, rows);
    else if (n == 48)
        wg_values_48(c, a, b, k, rows);
    else
        wg_values_128(c, a, b, k, rows);
}

#endif
