/* dialect_emu_wgmma.h: products of four waves in the emulator: every lane forms the sums it gets,
 * from what lies in shared memory when it comes by. Included by dialect_emu.h alone. */
#ifndef WEIR_OPS_GPU_EMU_DIALECT_EMU_WGMMA_H
#define WEIR_OPS_GPU_EMU_DIALECT_EMU_WGMMA_H

#define GPU_WARPGROUPS 1

GPU_FN void gpu_wg_seen(void) {}
GPU_FN void gpu_wg_hold(float *sum, uint32_t n) {
    (void)sum;
    (void)n;
}
GPU_FN void gpu_wg_begin(void) {}
GPU_FN void gpu_wg_commit(void) {}
/* Where the lanes of a wave meet. */
#define gpu_wg_wait(N) (void)emu_meet(EMU_WAIT, NULL, 0 * (N), NULL)

GPU_FN uint32_t gpu_panel(uint32_t row, uint32_t piece);
GPU_FN uint32_t gpu_wg_row(uint32_t i);
GPU_FN uint32_t gpu_wg_col(uint32_t i);

/* Element k of row r of a panel. */
GPU_FN float gpu_wg_element(const uint16_t *panel, uint32_t row, uint32_t k) {
    return gpu_as_f32((uint32_t)panel[gpu_panel(row, k / 8) + k % 8] << 16);
}
GPU_FN void gpu_wg_rows(float *c, uint32_t n, const uint16_t *a, const uint16_t *b, uint32_t k,
                        bool add) {
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 16 * k; e < 16 * k + 16; e++)
            sum += gpu_wg_element(a, gpu_wg_row(i), e) * gpu_wg_element(b, gpu_wg_col(i), e);
        c[i] = add ? c[i] + sum : sum;
    }
}
GPU_FN void gpu_wg_columns(float *c, uint32_t n, const uint16_t *a, const uint16_t *b, uint32_t k) {
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 16 * k; e < 16 * k + 16; e++)
            sum += gpu_wg_element(a, e, gpu_wg_row(i)) * gpu_wg_element(b, gpu_wg_col(i), e);
        c[i] += sum;
    }
}
/* Two rows of 16 elements, which four lanes have: two and, eight further, two each. */
GPU_FN void gpu_wg_gather(struct gpu_u4 a, float row[2][16]) {
    const struct emu_gift *all = emu_meet(EMU_SHUFFLE, &a, sizeof a, NULL)->gift;
    for (uint32_t e = 0; e < 16; e++) {
        struct gpu_u4 v;
        memcpy(&v, all[gpu_lane() / 4 * 4 + e % 8 / 2].bytes, sizeof v);
        const uint32_t pair[2] = {e < 8 ? v.x : v.z, e < 8 ? v.y : v.w};
        for (uint32_t r = 0; r < 2; r++)
            row[r][e] = e % 2 ? gpu_as_f32(pair[r] & 0xFFFF0000u) : gpu_as_f32(pair[r] << 16);
    }
}
GPU_FN void gpu_wg_rows_of(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                           bool add) {
    float row[2][16];
    const uint16_t *panel = b + k / 4 * n * 64;
    gpu_wg_gather(a, row);
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 0; e < 16; e++)
            sum += row[i / 2 % 2][e] * gpu_wg_element(panel, gpu_wg_col(i), k % 4 * 16 + e);
        c[i] = add ? c[i] + sum : sum;
    }
}
GPU_FN void gpu_wg_values(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                          uint32_t rows) {
    float row[2][16];
    gpu_wg_gather(a, row);
    for (uint32_t i = 0; i < n / 2; i++) {
        const uint32_t col = gpu_wg_col(i);
        const uint16_t *panel = b + col / 64 * rows * 64;
        float sum = 0;
        for (uint32_t e = 0; e < 16; e++)
            sum += row[i / 2 % 2][e] * gpu_wg_element(panel, 16 * k + e, col % 64);
        c[i] += sum;
    }
}

#endif
