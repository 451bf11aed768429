/* case_mla.c: absorbed latent attention of single tokens, share by share, and putting shares
 * together. */
#include "tests/ops/gpu/case_mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

struct own {
    const float *part, *lse; /* of the kernel */
    float *want_part, *want_lse;
    struct case_rows rows;
    uint32_t n, heads, latent, shares, share;
    bool equal; /* all rows are; what they should be stands once */
    const struct gpu_mla_seq *seqs;
};

/* What it should be, for one head of one row over one share: the sum of latents by weight, and the
 * base-2 logarithm of the weights' sum. */
static void attend(const float *q, const float *records, uint32_t width, uint32_t latent,
                   uint32_t from, uint32_t end, double scale, float *part, float *lse) {
    double top = -INFINITY, total = 0, sum[GPU_LATENT_MOST] = {0};
    for (uint32_t t = from; t < end; t++) { /* the maximum moves along, as it would in two passes */
        const float *record = records + (size_t)t * width;
        float lane[8] = {0};
        for (uint32_t k = 0; k < width; k++)
            lane[k % 8] += q[k] * record[k];
        double score = 0;
        for (int i = 0; i < 8; i++)
            score += (double)lane[i];
        score *= scale * 1.4426950408889634;
        if (score > top) {
            double factor = exp2(top - score);
            total *= factor;
            for (uint32_t c = 0; c < latent; c++)
                sum[c] *= factor;
            top = score;
        }
        double p = exp2(score - top);
        total += p;
        for (uint32_t c = 0; c < latent; c++)
            sum[c] += p * (double)record[c];
    }
    for (uint32_t c = 0; c < latent; c++)
        part[c] = (float)(sum[c] / total);
    *lse = (float)(top + log2(total));
}

static double worst_split(const struct gpu_case *c) {
    const struct own *o = c->own;
    double worst = case_error_rows(&o->rows, 1e-2);
    for (uint32_t i = 0; i < o->n; i++)
        for (uint32_t h = 0; h < o->heads; h++)
            for (uint32_t s = 0; s * o->share < o->seqs[i].positions; s++) {
                size_t at = ((size_t)o->seqs[i].row * o->heads + h) * o->shares + s;
                size_t want = o->equal ? (size_t)h * o->shares + s : at;
                /* Weights are rounded to BF16. */
                worst = fmax(worst, case_error(o->part + at * o->latent,
                                               o->want_part + want * o->latent, o->latent, 1e-2));
                worst = fmax(worst, fabs((double)o->lse[at] - o->want_lse[want]) / 5e-3);
                if (isnan(o->lse[at]))
                    worst = INFINITY;
            }
    return worst;
}

/* Shares of one head put together. */
static void together(const float *part, const float *lse, uint32_t n, uint32_t latent, float *out) {
    double top = -INFINITY, total = 0;
    for (uint32_t s = 0; s < n; s++)
        top = fmax(top, (double)lse[s]);
    for (uint32_t s = 0; s < n; s++)
        total += exp2(lse[s] - top);
    for (uint32_t k = 0; k < latent; k++) {
        double sum = 0;
        for (uint32_t s = 0; s < n; s++)
            sum += exp2(lse[s] - top) / total * part[(size_t)s * latent + k];
        out[k] = (float)sum;
    }
}

void case_put_record(unsigned char *to, float *x, enum dtype dtype, uint32_t latent, uint32_t extra,
                     bool rounded) {
    uint16_t *bf16 = (uint16_t *)(void *)to;
    if (dtype == DTYPE_FP8) {
        bf16 = (uint16_t *)(void *)(to + kv_extra_at(latent));
        for (uint32_t k = 0; k < latent; k += KV_SCALED) {
            uint32_t n = latent - k < KV_SCALED ? latent - k : KV_SCALED;
            float scale = kv_scale(x + k, n);
            kv_encode(x + k, n, scale, to + k);
            memcpy(to + kv_scales_at(latent) + k / KV_SCALED * sizeof scale, &scale, sizeof scale);
            for (uint32_t i = k; i < k + n; i++)
                x[i] = e4m3_to_f32(to[i]) * scale;
            for (uint32_t i = k; rounded && i < k + n; i++)
                x[i] = bf16_round(x[i]);
        }
        x += latent;
    }
    for (uint32_t k = 0; k < (dtype == DTYPE_FP8 ? extra : latent + extra); k++)
        bf16[k] = f32_to_bf16(x[k]);
}

/* Leaves sign and the lowest bits of an FP8 record's codes, which make them the smallest there are;
 * values become as small as queries are large. */
#define LARGE_QUERIES 0x1p18f
static void make_codes_small(unsigned char *to, float *x, uint32_t latent, bool rounded) {
    for (uint32_t k = 0; k < latent; k++) {
        unsigned char *at = to + kv_scales_at(latent) + k / KV_SCALED * sizeof(float);
        float scale;
        memcpy(&scale, at, sizeof scale);
        if (k % KV_SCALED == 0) {
            scale *= 0x1p15f / LARGE_QUERIES;
            memcpy(at, &scale, sizeof scale);
        }
        to[k] &= 0x87;
        x[k] = e4m3_to_f32(to[k]) * scale;
        x[k] = rounded ? bf16_round(x[k]) : x[k];
    }
}

/* The case's arrays, in order of sequences. */
struct histories {
    uint8_t *pool;
    int32_t *table;
    size_t record, page_bytes, layer_at;
    uint32_t pages; /* of a sequence */
};
static unsigned char *record_of(const struct histories *h, uint32_t i, uint32_t t) {
    return h->pool + (size_t)h->table[i * h->pages + t / 64] * h->page_bytes + h->layer_at +
           (size_t)(t % 64) * h->record;
}

static void copy_row(struct case_rows *r, uint32_t to, uint32_t from) {
    memcpy(tensor_row(r->host, to), tensor_row(r->host, from), r->host.cols * sizeof(float));
    memcpy(r->h + (size_t)to * r->stride, r->h + (size_t)from * r->stride, r->host.cols * 2);
}

/* rows, heads, latent, extra, nope, positions of the longest, positions of a share (0: by the
 * rules), whether all rows are of the same length, history and query, each with memory of its own
 */
static void make_split_of(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape,
                          enum dtype dtype, bool small_codes) {
    uint32_t rows = p[0], heads = p[1], latent = p[2], extra = p[3], nope = p[4];
    uint32_t width = latent + extra, q_step = nope + extra;
    uint32_t share = p[6] ? p[6] : gpu_mla_share(gpu_mla_shares(rows, heads, shape), p[5]);
    uint32_t shares = (p[5] + share - 1) / share, wanted = p[7] ? 1 : rows;
    struct own *o = case_host(c, sizeof *o);
    *o = (struct own){.n = rows,
                      .heads = heads,
                      .latent = latent,
                      .shares = shares,
                      .share = share,
                      .equal = p[7]};
    struct case_rows qa = case_rows(c, rows, heads * latent, true, small_codes ? LARGE_QUERIES : 1),
                     q = case_rows(c, rows, heads * q_step, true, 1);
    struct histories h = {.record = kv_record_bytes(dtype, latent, extra),
                          .pages = (p[5] + 63) / 64};
    h.layer_at = p[7] ? 0 : 64 * h.record; /* of two layers, the second */
    h.page_bytes = h.layer_at + 64 * h.record;
    h.pool = case_take(c, rows * h.pages * h.page_bytes);
    h.table = case_take(c, rows * h.pages * sizeof *h.table);
    struct gpu_mla_seq *seqs = case_take(c, rows * sizeof *seqs);
    float *part = case_take(c, (size_t)rows * heads * shares * latent * 4);
    float *lse = case_take(c, (size_t)rows * heads * shares * 4);
    float *records = case_host(c, (size_t)p[5] * width * 4), *query = case_host(c, width * 4);
    o->want_part = case_host(c, (size_t)wanted * heads * shares * latent * 4);
    o->want_lse = case_host(c, (size_t)wanted * heads * shares * 4);
    o->rows = case_blank(c, rows, heads * latent, true);
    double scale = 1 / sqrt((double)q_step) / 4;
    double positions = 0;
    /* Values of FP8 history are BF16 where they are multiplied, or stay what they are. */
    const bool rounded = !(shape.warpgroups && latent == GPU_LATENT_MOST);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t row = rows - 1 - i, n = p[7] || p[5] <= i * 13 ? p[5] : p[5] - i * 13;
        seqs[i] = (struct gpu_mla_seq){row, n, i * h.pages, share};
        positions += n;
        for (uint32_t k = 0; k < h.pages; k++) /* pages lie in falling order, sequences mixed */
            h.table[i * h.pages + k] = (int32_t)((h.pages - 1 - k) * rows + i);
        if (p[7] && i) {
            for (uint32_t k = 0; k < h.pages; k++)
                memcpy(record_of(&h, i, k * 64), record_of(&h, 0, k * 64), 64 * h.record);
            copy_row(&qa, row, rows - 1);
            copy_row(&q, row, rows - 1);
            memcpy(tensor_row(o->rows.host, row), tensor_row(o->rows.host, rows - 1),
                   (size_t)heads * latent * sizeof(float));
            continue;
        }
        for (uint32_t t = 0; t < n; t++) {
            for (uint32_t k = 0; k < width; k++)
                records[(size_t)t * width + k] = case_bf16(c, 1);
            case_put_record(record_of(&h, i, t), records + (size_t)t * width, dtype, latent, extra,
                            rounded);
            if (small_codes)
                make_codes_small(record_of(&h, i, t), records + (size_t)t * width, latent, rounded);
        }
        for (uint32_t head = 0; head < heads; head++) {
            size_t at = ((p[7] ? 0 : (size_t)row * heads) + head) * shares;
            memcpy(query, tensor_row(qa.host, row) + head * latent, latent * 4);
            memcpy(query + latent, tensor_row(q.host, row) + head * q_step + nope, extra * 4);
            for (uint32_t s = 0; s * share < n; s++) {
                uint32_t end = (s + 1) * share < n ? (s + 1) * share : n;
                attend(query, records, width, latent, s * share, end, scale,
                       o->want_part + (at + s) * latent, o->want_lse + at + s);
            }
            together(o->want_part + at * latent, o->want_lse + at, (n + share - 1) / share, latent,
                     tensor_row(o->rows.host, row) + head * latent);
        }
    }
    o->part = part;
    o->lse = lse;
    o->seqs = seqs;
    c->record.mla_decode = (struct gpu_mla_decode){.qa = qa.h,
                                                   .q = q.h,
                                                   .kv = h.pool + h.layer_at,
                                                   .seqs = seqs,
                                                   .pages = h.table,
                                                   .part = part,
                                                   .lse = lse,
                                                   .out = o->rows.h,
                                                   .page_bytes = h.page_bytes,
                                                   .record_bytes = (uint32_t)h.record,
                                                   .fp8 = dtype == DTYPE_FP8,
                                                   .heads = heads,
                                                   .latent = latent,
                                                   .extra = extra,
                                                   .nope = nope,
                                                   .qa_stride = qa.stride,
                                                   .q_stride = q.stride,
                                                   .q_step = q_step,
                                                   .shares = shares,
                                                   .out_stride = o->rows.stride,
                                                   .scale = (float)scale};
    c->launch = gpu_launch_mla_split(&c->record.mla_decode, rows, shape);
    c->then[c->n_then++] = gpu_launch_mla_merge(&c->record.mla_decode, rows, shape);
    c->traffic = positions * (double)h.record;
    c->worst = worst_split;
    c->own = o;
    snprintf(c->label, sizeof c->label,
             "%s and merge, %u rows of %u, %u heads, %u+%u, shares of %u",
             gpu_kernel_info(c->launch.kernel)->name, rows, p[5], heads, latent, extra, share);
}
static void make_split(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    make_split_of(c, p, shape, DTYPE_BF16, false);
}
static void make_split_fp8(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    make_split_of(c, p, shape, DTYPE_FP8, false);
}
static void make_split_small_codes(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    make_split_of(c, p, shape, DTYPE_FP8, true);
}
static const uint32_t split_small[][CASE_PARAMETERS] = {
    {1, 4, 24, 8, 16, 1, 64, 0},        {2, 8, 64, 16, 32, 70, 64, 0},
    {3, 12, 64, 16, 32, 200, 128, 0},   {1, 17, 16, 8, 8, 65, 64, 0},
    {1, 3, 24, 8, 8, 250, 256, 0},      {2, 12, 512, 64, 128, 150, 128, 0},
    {1, 17, 512, 64, 128, 200, 128, 0}, {1, 2, 512, 64, 128, 350, 320, 0}};
static const uint32_t split_large[][CASE_PARAMETERS] = {
    {128, 12, 512, 64, 128, 1024, 0, 1}, {1, 12, 512, 64, 128, 32768, 0, 1},
    {8, 12, 512, 64, 128, 32768, 0, 1},  {32, 12, 512, 64, 128, 32768, 0, 1},
    {1, 12, 512, 64, 128, 145408, 0, 1}, {1, 96, 512, 64, 128, 18176, 0, 1}};
const struct gpu_case_kind case_mla_split = {"mla_split", make_split, SHAPES(split_small),
                                             SHAPES(split_large)};

const struct gpu_case_kind case_mla_split_fp8 = {"mla_split_fp8", make_split_fp8,
                                                 SHAPES(split_small), SHAPES(split_large)};

/* What denormal numbers would lose, if anything on the way took them for zero, and queries beyond
 * the range of F16. */
static const uint32_t split_codes[][CASE_PARAMETERS] = {{2, 12, 512, 64, 128, 150, 128, 0},
                                                        {1, 2, 512, 64, 128, 350, 320, 0}};
const struct gpu_case_kind case_mla_codes = {"mla_split_fp8_small", make_split_small_codes,
                                             SHAPES(split_codes), NULL, 0};

static double worst_merge(const struct gpu_case *c) {
    const struct own *o = c->own;
    return case_error_rows(&o->rows, 1e-4);
}

/* rows, heads, latent, shares */
static void make_merge(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    uint32_t rows = p[0], heads = p[1], latent = p[2], shares = p[3];
    struct own *o = case_host(c, sizeof *o);
    size_t n = (size_t)rows * heads * shares;
    float *part = case_f32_vector(c, n * latent, 1, 0), *lse = case_f32_vector(c, n, 4, 0);
    struct gpu_mla_seq *seqs = case_take(c, rows * sizeof *seqs);
    o->rows = case_blank(c, rows, heads * latent, true);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t used = shares > i ? shares - i : 1, row = rows - 1 - i;
        seqs[i] = (struct gpu_mla_seq){row, used * 64 - 63, 0, 64};
        for (uint32_t h = 0; h < heads; h++) {
            size_t at = ((size_t)row * heads + h) * shares;
            together(part + at * latent, lse + at, used, latent,
                     tensor_row(o->rows.host, row) + h * latent);
        }
        /* What the shares behind would have left is anything. */
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t s = used; s < shares; s++)
                lse[((size_t)row * heads + h) * shares + s] = NAN;
    }
    c->record.mla_decode = (struct gpu_mla_decode){.part = part,
                                                   .lse = lse,
                                                   .seqs = seqs,
                                                   .out = o->rows.h,
                                                   .heads = heads,
                                                   .latent = latent,
                                                   .out_stride = o->rows.stride,
                                                   .shares = shares};
    c->launch = gpu_launch_mla_merge(&c->record.mla_decode, rows, shape);
    c->traffic = (double)n * (latent + 1) * 4 + 2.0 * rows * heads * latent;
    c->worst = worst_merge;
    c->own = o;
    snprintf(c->label, sizeof c->label, "mla_merge %u rows, %u heads of %u, %u shares", rows, heads,
             latent, shares);
}
static const uint32_t merge_small[][CASE_PARAMETERS] = {
    {1, 2, 24, 1}, {3, 2, 64, 7}, {1, 1, 512, 70}};
static const uint32_t merge_large[][CASE_PARAMETERS] = {
    {1, 12, 512, 128}, {8, 12, 512, 16}, {128, 12, 512, 1}};
const struct gpu_case_kind case_mla_merge = {"mla_merge", make_merge, SHAPES(merge_small),
                                             SHAPES(merge_large)};
