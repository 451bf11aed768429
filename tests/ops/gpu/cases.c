/* cases.c: memory, numbers and errors of cases. */
#include "tests/ops/gpu/cases.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(WITH_ASAN)
void __asan_poison_memory_region(const volatile void *, size_t);
void __asan_unpoison_memory_region(const volatile void *, size_t);
#else
#define __asan_poison_memory_region(P, N)   (void)0
#define __asan_unpoison_memory_region(P, N) (void)0
#endif

enum { GAP = 64 };

const struct gpu_case_kind *const gpu_case_kinds[] = {
    &case_norm,           &case_mix_norm,    &case_linear,     &case_heads,
    &case_kda_step,       &case_route,       &case_experts_up, &case_experts_down,
    &case_combine,        &case_mla_split,   &case_mla_merge,  &case_mla_write,
    &case_embed,          &case_glu,         &case_copy,       &case_mla_split_fp8,
    &case_mla_write_fp8,  &case_kda_prefill, &case_group,      &case_mla_gather,
    &case_mla_gather_fp8, &case_mla_attend,  &case_kda_verify, &case_kda_verify_rounds,
    &case_sample,         &case_mla_codes,   &case_widen};
const size_t gpu_n_case_kinds = sizeof gpu_case_kinds / sizeof *gpu_case_kinds;

void *case_take(struct gpu_case *c, size_t bytes) {
    WEIR_ASSERT(c->n_pieces < CASE_PIECES);
    size_t at = (c->bytes + GAP + 15) / 16 * 16;
    WEIR_ASSERT(at + bytes + 2 * GAP <= c->room); /* pointers into it must not move */
    c->piece[c->n_pieces].at = at;
    c->piece[c->n_pieces++].bytes = bytes;
    c->bytes = at + bytes;
    memset(c->memory + at, 0xFF, bytes);
    return c->memory + at;
}

void *case_host(struct gpu_case *c, size_t bytes) {
    WEIR_ASSERT(c->n_host < CASE_PIECES);
    void *p = calloc(1, bytes ? bytes : 1);
    WEIR_ASSERT(p);
    return c->host[c->n_host++] = p;
}

/* What kernels must not touch: gaps are poisoned where a sanitizer looks, else compared. */
static void each_gap(const struct gpu_case *c, void (*f)(unsigned char *, size_t, bool *),
                     bool *out) {
    size_t from = 0;
    for (int i = 0; i <= c->n_pieces; i++) {
        size_t to = i < c->n_pieces ? c->piece[i].at : c->bytes + GAP;
        f(c->memory + from, to - from, out);
        if (i < c->n_pieces)
            from = to + c->piece[i].bytes;
    }
}
static void begin_gap(unsigned char *p, size_t n, bool *out) {
    (void)out;
    memset(p, 0xFF, n);
    __asan_poison_memory_region(p, n);
}
static void end_gap(unsigned char *p, size_t n, bool *out) {
    (void)out;
    __asan_unpoison_memory_region(p, n);
}
static void compare_gap(unsigned char *p, size_t n, bool *out) {
    end_gap(p, n, out);
    for (size_t i = 0; i < n; i++)
        *out &= p[i] == 0xFF;
}

void gpu_case_open(struct gpu_case *c, const struct gpu_case_kind *kind, bool large, size_t i,
                   struct gpu_shape shape, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->room = large ? (size_t)4 << 30 : (size_t)8 << 20; /* of addresses; pages come when used */
    c->memory = aligned_alloc(4096, c->room);
    WEIR_ASSERT(c->memory);
    kind->make(c, large ? kind->large[i] : kind->small[i], shape);
    each_gap(c, begin_gap, NULL);
    c->bytes += GAP;
    __asan_poison_memory_region(c->memory + c->bytes, c->room - c->bytes);
}

void gpu_case_close(struct gpu_case *c) {
    __asan_unpoison_memory_region(c->memory + c->bytes, c->room - c->bytes);
    c->bytes -= GAP;
    each_gap(c, end_gap, NULL);
    free(c->memory);
    for (int i = 0; i < c->n_host; i++)
        free(c->host[i]);
}

bool gpu_case_gaps_intact(const struct gpu_case *c) {
    struct gpu_case bare = *c;
    bare.bytes -= GAP;
    bool intact = true;
    each_gap(&bare, compare_gap, &intact);
    return intact;
}

/* One mixing: large cases have hundreds of millions of numbers. */
uint64_t case_bits(struct gpu_case *c) {
    return rng_mix((c->seed << 40) + c->drawn++);
}

double case_unit(struct gpu_case *c) {
    return rng_unit(case_bits(c));
}

/* About normal: the sum of four uniform 16-bit pieces. */
float case_float(struct gpu_case *c, float scale) {
    uint64_t bits = case_bits(c);
    int32_t sum = -131070;
    for (int i = 0; i < 4; i++, bits >>= 16)
        sum += (int32_t)(bits & 0xFFFF);
    return (float)sum * (1.7320508f / 65536) * scale;
}
float case_bf16(struct gpu_case *c, float scale) {
    return bf16_round(case_float(c, scale));
}
uint16_t *case_bf16_vector(struct gpu_case *c, size_t n, float scale) {
    uint16_t *p = case_take(c, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = f32_to_bf16(case_float(c, scale));
    return p;
}
float *case_f32_vector(struct gpu_case *c, size_t n, float scale, float offset) {
    float *p = case_take(c, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = offset + case_float(c, scale);
    return p;
}

struct case_rows case_blank(struct gpu_case *c, uint32_t rows, uint32_t cols, bool bf16) {
    struct case_rows r = {.rows = rows, .stride = (cols + 7) / 8 * 8 + 8};
    r.host = (struct tensor){case_host(c, (size_t)rows * cols * sizeof(float)), cols, cols};
    /* The last row ends with its last column: what is read beyond is outside. */
    size_t n = rows ? (size_t)(rows - 1) * r.stride + cols : 0;
    if (bf16)
        r.h = case_take(c, n * sizeof *r.h);
    else
        r.f = case_take(c, n * sizeof *r.f);
    return r;
}

struct case_rows case_rows(struct gpu_case *c, uint32_t rows, uint32_t cols, bool bf16,
                           float scale) {
    struct case_rows r = case_blank(c, rows, cols, bf16);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < cols; k++) {
            float v = bf16 ? case_bf16(c, scale) : case_float(c, scale);
            tensor_row(r.host, i)[k] = v;
            if (bf16)
                r.h[(size_t)i * r.stride + k] = f32_to_bf16(v);
            else
                r.f[(size_t)i * r.stride + k] = v;
        }
    return r;
}

/* A whole row is compared or none of it. */
static bool compared(const struct case_rows *r, uint32_t row) {
    return r->every < 2 || row / r->group % r->every == 0;
}
uint32_t case_every(uint32_t groups, double products_each) {
    const double most = 3e8; /* products: a third of a second */
    uint32_t every = 1;
    while (every < groups && groups * products_each / every > most)
        every++;
    return every;
}

/* Of what is a number. */
static double root_mean_square(const float *x, size_t n) {
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += isnan(x[i]) ? 0 : (double)x[i] * x[i];
    return sqrt(square / (double)(n ? n : 1)) + 1e-30;
}

static double one_error(float got, float want, double allowed) {
    if (isnan(got) || isnan(want))
        return isnan(got) == isnan(want) ? 0 : INFINITY;
    return fabs((double)got - want) / allowed;
}

double case_error_rows(const struct case_rows *r, double slack) {
    uint32_t cols = r->host.cols, n = 0;
    double worst = 0, square = 0;
    for (uint32_t i = 0; i < r->rows; i++) {
        const double rms = root_mean_square(tensor_row(r->host, i), compared(r, i) ? cols : 0);
        square += rms * rms;
        n += compared(r, i);
    }
    const double rms = sqrt(square / (n ? n : 1));
    for (uint32_t i = 0; i < r->rows; i++)
        for (uint32_t k = 0; k < cols && compared(r, i); k++) {
            size_t at = (size_t)i * r->stride + k;
            float want = tensor_row(r->host, i)[k], got = r->h ? bf16_to_f32(r->h[at]) : r->f[at];
            double allowed = slack * rms + (r->h ? fabs((double)want) * 0x1p-8 : 0);
            worst = fmax(worst, one_error(got, want, allowed));
        }
    return worst;
}

double case_error(const float *got, const float *want, size_t n, double slack) {
    double worst = 0, rms = root_mean_square(want, n);
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, one_error(got[i], want[i], slack * rms));
    return worst;
}

struct work case_work(struct gpu_case *c, size_t scratch_bytes) {
    return (struct work){.index = 0, .count = 1, .scratch = case_host(c, scratch_bytes)};
}
