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
GPU_FN float gpu_from_e4m3(uint32_t code);

/* Element k of row r of a panel. */
GPU_FN float gpu_wg_element(const uint16_t *panel, uint32_t row, uint32_t k) {
    return gpu_as_f32((uint32_t)panel[gpu_panel(row, k / 8) + k % 8] << 16);
}
/* The same of panels of `rows` rows, one behind the other. */
GPU_FN float gpu_wg_far(const uint16_t *panels, uint32_t rows, uint32_t row, uint32_t k) {
    return gpu_wg_element(panels + k / 64 * rows * 64, row, k % 64);
}
GPU_FN void gpu_wg_rows(float *c, uint32_t n, const uint16_t *a, const uint16_t *b, uint32_t k,
                        bool add) {
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 16 * k; e < 16 * k + 16; e++)
            sum += gpu_wg_far(a, 64, gpu_wg_row(i), e) * gpu_wg_far(b, n, gpu_wg_col(i), e);
        c[i] = add ? c[i] + sum : sum;
    }
}
GPU_FN void gpu_wg_columns(float *c, uint32_t n, const uint16_t *a, const uint16_t *b, uint32_t k,
                           uint32_t k_b) {
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 0; e < 16; e++)
            sum += gpu_wg_element(a, 16 * k + e, gpu_wg_row(i)) *
                   gpu_wg_far(b, n, gpu_wg_col(i), 16 * k_b + e);
        c[i] += sum;
    }
}
GPU_FN void gpu_wg_leave(uint16_t *panel, const float *c) {
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = gpu_wg_row(i);
        panel[gpu_panel(gpu_wg_col(i), row / 8) + row % 8] =
            (uint16_t)(gpu_bf16_pair(c[i], 0) & 0xFFFFu);
    }
}
/* F16 numbers. */
GPU_FN float gpu_from_f16(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 0x3FFu;
    const float small = (float)m * 0x1p-24f;
    if (e == 0)
        return sign ? -small : small;
    return gpu_as_f32(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
}
GPU_FN uint32_t gpu_to_f16(float f) {
    const uint32_t u = gpu_as_u32(f), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u)
        return 0x7FFF;
    if (a >= 0x477FF000u)
        return sign | 0x7C00u;
    if (a < 0x38800000u) /* adding 1/2 leaves multiples of the smallest one */
        return sign | (gpu_as_u32(gpu_as_f32(a) + 0.5f) - 0x3F000000u);
    return sign | (((a + 0xFFFu + (a >> 13 & 1u)) >> 13) - (112u << 10));
}
GPU_FN uint32_t gpu_f16_pair(float lo, float hi) {
    return gpu_to_f16(lo) | gpu_to_f16(hi) << 16;
}
GPU_FN uint32_t gpu_f16_code(uint32_t code) {
    return (code & 0x7Fu) == 0x7Fu ? 0x7FFF : gpu_to_f16(gpu_from_e4m3(code));
}
GPU_FN uint32_t gpu_f16_codes(uint32_t w, bool upper) {
    const uint32_t pair = upper ? w >> 16 : w;
    return gpu_f16_code(pair & 0xFFu) | gpu_f16_code(pair >> 8 & 0xFFu) << 16;
}

GPU_FN float gpu_wg_number(uint32_t bits, bool f16) {
    return f16 ? gpu_from_f16(bits) : gpu_as_f32(bits << 16);
}
/* Two rows of 16 elements, which four lanes have: two and, eight further, two each. */
GPU_FN void gpu_wg_gather(struct gpu_u4 a, float row[2][16], bool f16) {
    const struct emu_gift *all = emu_meet(EMU_SHUFFLE, &a, sizeof a, NULL)->gift;
    for (uint32_t e = 0; e < 16; e++) {
        struct gpu_u4 v;
        memcpy(&v, all[gpu_lane() / 4 * 4 + e % 8 / 2].bytes, sizeof v);
        const uint32_t pair[2] = {e < 8 ? v.x : v.z, e < 8 ? v.y : v.w};
        for (uint32_t r = 0; r < 2; r++)
            row[r][e] = gpu_wg_number(e % 2 ? pair[r] >> 16 : pair[r] & 0xFFFFu, f16);
    }
}
GPU_FN void gpu_wg_rows_from(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                             bool add, bool f16) {
    float row[2][16];
    gpu_wg_gather(a, row, f16);
    for (uint32_t i = 0; i < n / 2; i++) {
        float sum = 0;
        for (uint32_t e = 16 * k; e < 16 * k + 16; e++) {
            const uint16_t *panel = b + e / 64 * n * 64;
            const uint32_t bits = panel[gpu_panel(gpu_wg_col(i), e % 64 / 8) + e % 8];
            sum += row[i / 2 % 2][e % 16] * gpu_wg_number(bits, f16);
        }
        c[i] = add ? c[i] + sum : sum;
    }
}
GPU_FN void gpu_wg_rows_of(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                           bool add) {
    gpu_wg_rows_from(c, n, a, b, k, add, false);
}
GPU_FN void gpu_wg_rows_of_f16(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                               bool add) {
    gpu_wg_rows_from(c, n, a, b, k, add, true);
}
GPU_FN void gpu_wg_values(float *c, uint32_t n, struct gpu_u4 a, const uint16_t *b, uint32_t k,
                          uint32_t rows) {
    float row[2][16];
    gpu_wg_gather(a, row, false);
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
