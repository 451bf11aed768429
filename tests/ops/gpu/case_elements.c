/* case_elements.c: embeddings, gated activation, copying, FP8 matrices becoming BF16. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "ops/gpu/pack.h"
#include "ops/kv.h"
#include "ops/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

static double worst_rows(const struct gpu_case *c) {
    return case_error_rows(c->own, 1e-4);
}

/* rows, cols, vocabulary */
static void make_embed(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], cols = p[1], vocab = p[2];
    struct case_rows *out = case_host(c, sizeof *out);
    uint16_t *w = case_bf16_vector(c, (size_t)vocab * cols, 1);
    int32_t *ids = case_take(c, rows * sizeof *ids);
    *out = case_blank(c, rows, cols, true);
    for (uint32_t i = 0; i < rows; i++) {
        /* Every third row is padding, which must come out as zeros. */
        ids[i] = i % 3 == 2 ? -1 : (int32_t)(case_unit(c) * vocab);
        for (uint32_t k = 0; k < cols && ids[i] >= 0; k++)
            tensor_row(out->host, i)[k] = bf16_to_f32(w[(size_t)ids[i] * cols + k]);
    }
    c->record.embed = (struct gpu_embed){w, out->h, ids, cols, out->stride};
    c->launch = gpu_launch_embed(&c->record.embed, rows);
    c->traffic = 4.0 * rows * cols;
    c->worst = worst_rows;
    c->own = out;
    snprintf(c->label, sizeof c->label, "embed %u rows of %u", rows, cols);
}
static const uint32_t embed_small[][CASE_PARAMETERS] = {{1, 8, 5}, {4, 64, 3}, {3, 2104, 7}};
static const uint32_t embed_large[][CASE_PARAMETERS] = {{1, 7168, 20480}, {4096, 7168, 20480}};
const struct gpu_case_kind case_embed = {"embed", make_embed, SHAPES(embed_small),
                                         SHAPES(embed_large)};

/* rows, cols, SiTU, its bound of the linear half, in place */
static void make_glu(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], cols = p[1];
    struct case_rows gate = case_rows(c, rows, cols, true, 3),
                     up = case_rows(c, rows, cols, true, 3);
    struct case_rows *out = case_host(c, sizeof *out);
    *out = p[4] ? gate : case_blank(c, rows, cols, true);
    struct op_glu op = {.act = {.situ = p[2], .beta = 2, .linear_beta = (float)p[3]},
                        .gate = gate.host,
                        .up = up.host,
                        .y = out->host};
    ref_glu(&op, &(struct batch){.n_rows = rows}, case_work(c, 0));
    c->record.glu = (struct gpu_glu){gate.h,    up.h,        out->h, cols, gate.stride,
                                     up.stride, out->stride, p[2],   2,    (float)p[3]};
    c->launch = gpu_launch_glu(&c->record.glu, rows);
    c->traffic = 6.0 * rows * cols;
    c->worst = worst_rows;
    c->own = out;
    snprintf(c->label, sizeof c->label, "glu %u x %u, %s, bound %u%s", rows, cols,
             p[2] ? "SiTU" : "SiLU", p[3], p[4] ? ", in place" : "");
}
static const uint32_t glu_small[][CASE_PARAMETERS] = {
    {1, 1, 0, 0, 0}, {3, 97, 1, 0, 0}, {2, 2100, 1, 3, 1}, {2, 64, 0, 0, 1}};
static const uint32_t glu_large[][CASE_PARAMETERS] = {{1, 768, 1, 25, 1}, {4096, 768, 1, 25, 1}};
const struct gpu_case_kind case_glu = {"glu", make_glu, SHAPES(glu_small), SHAPES(glu_large)};

/* pieces */
struct copied {
    const unsigned char *from, *to;
    size_t bytes;
};
static double worst_copied(const struct gpu_case *c) {
    const struct copied *x = c->own;
    return memcmp(x->from, x->to, x->bytes) == 0 ? 0 : 1e9;
}
static void make_copy(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    struct copied *x = case_host(c, sizeof *x);
    const size_t bytes = (size_t)p[0] * 16;
    const void *from = case_bf16_vector(c, bytes / 2, 1);
    void *to = case_take(c, bytes);
    *x = (struct copied){from, to, bytes};
    c->record.copy = (struct gpu_copy){from, to, p[0]};
    c->launch = gpu_launch_copy(&c->record.copy);
    c->traffic = 2.0 * (double)bytes;
    c->worst = worst_copied;
    c->own = x;
    snprintf(c->label, sizeof c->label, "copy %u pieces of 16 bytes", p[0]);
}
static const uint32_t copy_small[][CASE_PARAMETERS] = {{1}, {255}, {1025}, {4096}};
static const uint32_t copy_large[][CASE_PARAMETERS] = {{1 << 24}};
const struct gpu_case_kind case_copy = {"copy", make_copy, SHAPES(copy_small), SHAPES(copy_large)};

struct written {
    const uint8_t *pool;
    unsigned char *want;
    float *values; /* of the rows, one behind the other */
    size_t bytes, record;
    uint32_t latent, extra, rows;
    const struct gpu_mla_place *places;
    size_t page_bytes;
    enum dtype dtype;
};

/* Value i of a record. */
static float value_of(const struct written *o, const uint8_t *record, uint32_t i) {
    const uint16_t *bf16 = (const uint16_t *)(const void *)record;
    if (o->dtype == DTYPE_BF16)
        return bf16_to_f32(bf16[i]);
    if (i >= o->latent) {
        bf16 = (const uint16_t *)(const void *)(record + kv_extra_at(o->latent));
        return bf16_to_f32(bf16[i - o->latent]);
    }
    float scale;
    memcpy(&scale, record + kv_scales_at(o->latent) + i / KV_SCALED * sizeof scale, sizeof scale);
    return e4m3_to_f32(record[i]) * scale;
}

/* The largest of the values that share a scale with value i. */
static float top_of(const struct written *o, const float *values, uint32_t i) {
    float top = 0;
    for (uint32_t k = i / KV_SCALED * KV_SCALED;
         k < o->latent && k < (i / KV_SCALED + 1) * KV_SCALED; k++)
        top = fmaxf(top, fabsf(values[k]));
    return top;
}

/* Where nothing is to be written, nothing may have been: the bytes stay as they were. A code has
 * four binary digits, and near zero steps of 2^-9 of the scale. */
static double worst_written(const struct gpu_case *c) {
    const struct written *o = c->own;
    double worst = 0;
    memset(o->want, 0xFF, o->bytes);
    for (uint32_t r = 0; r < o->rows; r++) {
        if (o->places[r].page < 0)
            continue;
        size_t at = (size_t)o->places[r].page * o->page_bytes + o->page_bytes / 2 +
                    o->places[r].position * o->record;
        const float *values = o->values + (size_t)r * (o->latent + o->extra);
        for (uint32_t i = 0; i < o->latent + o->extra; i++) {
            double want = (double)values[i], got = (double)value_of(o, o->pool + at, i);
            double allowed = fabs(want) / 128;
            if (o->dtype == DTYPE_FP8 && i < o->latent)
                allowed = fabs(want) / 15 + (double)top_of(o, values, i) / 448 / 512;
            worst = fmax(worst, fabs(got - want) / (allowed + 1e-30));
            worst = isnan(got) ? INFINITY : worst;
        }
        memcpy(o->want + at, o->pool + at, o->record);
    }
    return memcmp(o->want, o->pool, o->bytes) ? INFINITY : worst;
}

/* rows, latent, extra */
static void make_write_of(struct gpu_case *c, const uint32_t *p, enum dtype dtype) {
    uint32_t rows = p[0], latent = p[1], extra = p[2], width = latent + extra;
    uint32_t pages = rows / 64 + 3;
    struct case_rows kv = case_rows(c, rows, width, false, 2);
    float *norm = case_f32_vector(c, latent, 0.3f, 1);
    const size_t record = kv_record_bytes(dtype, latent, extra);
    size_t page_bytes = 2 * (size_t)64 * record; /* of two layers, of which this is the second */
    uint8_t *pool = case_take(c, pages * page_bytes);
    struct gpu_mla_place *places = case_take(c, rows * sizeof *places);
    struct written *o = case_host(c, sizeof *o);
    *o = (struct written){.pool = pool,
                          .want = case_host(c, pages * page_bytes),
                          .values = case_host(c, (size_t)rows * width * sizeof(float)),
                          .bytes = pages * page_bytes,
                          .record = record,
                          .latent = latent,
                          .extra = extra,
                          .rows = rows,
                          .places = places,
                          .page_bytes = page_bytes,
                          .dtype = dtype};
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t position = i + 40; /* the first page is begun, and the last not full */
        places[i] = (struct gpu_mla_place){i % 5 == 3 ? -1 : (int32_t)(pages - 1 - position / 64),
                                           position % 64};
        const float *x = tensor_row(kv.host, i);
        double square = 0;
        for (uint32_t k = 0; k < latent; k++)
            square += (double)x[k] * (double)x[k];
        float inv = (float)(1 / sqrt(square / latent + 1e-6));
        for (uint32_t k = 0; k < width; k++)
            o->values[(size_t)i * width + k] = k < latent ? x[k] * inv * norm[k] : x[k];
    }
    c->record.mla_write = (struct gpu_mla_write){.kv = kv.f,
                                                 .norm = norm,
                                                 .pool = pool + page_bytes / 2,
                                                 .places = places,
                                                 .page_bytes = page_bytes,
                                                 .record_bytes = (uint32_t)record,
                                                 .kv_stride = kv.stride,
                                                 .latent = latent,
                                                 .extra = extra,
                                                 .fp8 = dtype == DTYPE_FP8,
                                                 .eps = 1e-6f};
    c->launch = gpu_launch_mla_write(&c->record.mla_write, rows);
    c->traffic = (double)rows * (width * 4.0 + (double)record);
    c->worst = worst_written;
    c->own = o;
    snprintf(c->label, sizeof c->label, "mla_write%s %u rows of %u+%u",
             dtype == DTYPE_FP8 ? "_fp8" : "", rows, latent, extra);
}
static void make_write(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    make_write_of(c, p, DTYPE_BF16);
}
static void make_write_fp8(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    make_write_of(c, p, DTYPE_FP8);
}
static const uint32_t write_small[][CASE_PARAMETERS] = {{1, 8, 8}, {70, 24, 8}, {4, 512, 64}};
static const uint32_t write_large[][CASE_PARAMETERS] = {{1, 512, 64}, {4096, 512, 64}};
const struct gpu_case_kind case_mla_write = {"mla_write", make_write, SHAPES(write_small),
                                             SHAPES(write_large)};
const struct gpu_case_kind case_mla_write_fp8 = {"mla_write_fp8", make_write_fp8,
                                                 SHAPES(write_small), SHAPES(write_large)};

/* rows, cols: the same bits as those of the number that a code and its scale mean */
static void make_widen(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    const uint32_t rows = p[0], cols = p[1];
    const size_t n = (size_t)rows * cols;
    struct copied *x = case_host(c, sizeof *x);
    uint16_t *want = case_host(c, n * sizeof *want);
    const struct weight w = {
        .data = case_bf16_vector(c, n, 0.1f), .dtype = DTYPE_BF16, .rows = rows, .cols = cols};
    uint8_t *codes = case_take(c, gpu_pack_fp8_bytes(&w));
    uint16_t *to = case_take(c, n * sizeof *to);
    gpu_pack_fp8(codes, &w);
    const float *scales = (const float *)(const void *)(codes + (size_t)rows * GPU_FP8_ROW(cols));
    for (size_t i = 0; i < n; i++) {
        const size_t r = i / cols, k = i % cols;
        const float scale = scales[r * GPU_FP8_SCALES(cols) + k / GPU_FP8_SCALED];
        want[i] = f32_to_bf16(e4m3_to_f32(codes[r * GPU_FP8_ROW(cols) + k]) * scale);
    }
    *x = (struct copied){(const unsigned char *)want, (const unsigned char *)to, n * sizeof *to};
    c->record.widen = (struct gpu_widen){codes, to, scales, rows, cols};
    c->launch = gpu_launch_widen(&c->record.widen);
    c->traffic = 3.0 * rows * cols;
    c->worst = worst_copied;
    c->own = x;
    snprintf(c->label, sizeof c->label, "widen %u x %u", rows, cols);
}
static const uint32_t widen_small[][CASE_PARAMETERS] = {{1, 8}, {3, 520}, {70, 264}, {5, 4096}};
static const uint32_t widen_large[][CASE_PARAMETERS] = {{6284, 7168}, {7168, 1536}};
const struct gpu_case_kind case_widen = {"widen", make_widen, SHAPES(widen_small),
                                         SHAPES(widen_large)};
