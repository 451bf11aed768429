/* cases.h: what a kernel is tried on: inputs at random, the launch that the rules choose, and how
 * far its results are from those of ops/ref. A case knows nothing of who runs it: the emulator runs
 * it where it lies, a device gets a copy of its memory and of its record.
 *
 * All that a kernel may touch is in one piece of memory, filled with NaN (bytes 0xFF) where nothing
 * was put; pieces of it lie apart, and what is between them must stay as it is. */
#ifndef WEIR_TESTS_OPS_GPU_CASES_H
#define WEIR_TESTS_OPS_GPU_CASES_H

#include "ops/gpu/launch.h"
#include "ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CASE_PIECES = 64, CASE_PARAMETERS = 8, CASE_LAUNCHES = 8 };

union gpu_record {
    struct gpu_norm norm;
    struct gpu_mix_norm mix_norm;
    struct gpu_linear linear;
    struct gpu_kda_step kda_step;
    struct gpu_kda_verify kda_verify;
    struct gpu_route route;
    struct gpu_sample sample;
    struct gpu_experts experts;
    struct gpu_combine combine;
    struct gpu_mla_decode mla_decode;
    struct gpu_mla_prefill mla_prefill;
    struct gpu_mla_write mla_write;
    struct gpu_embed embed;
    struct gpu_glu glu;
    struct gpu_widen widen;
    struct gpu_copy copy;
    struct gpu_kda_prefill kda_prefill;
    struct gpu_group group;
};

struct gpu_case {
    char label[128];
    struct gpu_launch launch;
    union gpu_record record;
    struct gpu_launch then[CASE_LAUNCHES]; /* more launches behind it */
    union gpu_record other[CASE_LAUNCHES]; /* records of those that `has_other` names; else it is
                                              `record` */
    bool has_other[CASE_LAUNCHES];
    int n_then;
    unsigned char *memory;
    size_t bytes, room;
    struct {
        size_t at, bytes;
    } piece[CASE_PIECES];
    int n_pieces;
    void *host[CASE_PIECES]; /* memory that kernels do not see */
    int n_host;
    uint64_t seed, drawn;
    double traffic; /* bytes that must be moved at least */
    /* The largest error of what is in `memory`, in units of what is allowed. */
    double (*worst)(const struct gpu_case *c);
    void *own; /* of `worst` */
};

/* A shape of one kind of case: its numbers mean what `make` says. */
struct gpu_case_kind {
    const char *name;
    void (*make)(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape);
    const uint32_t (*small)[CASE_PARAMETERS]; /* shapes for the emulator and for right or wrong */
    size_t n_small;
    const uint32_t (*large)[CASE_PARAMETERS]; /* shapes of Kimi K3 on a rank of eight, for time */
    size_t n_large;
};
extern const struct gpu_case_kind case_norm, case_mix_norm, case_linear, case_heads, case_kda_step,
    case_route, case_experts_up, case_experts_down, case_combine, case_mla_split, case_mla_merge,
    case_mla_write, case_embed, case_glu, case_copy, case_widen, case_mla_split_fp8, case_mla_codes,
    case_mla_write_fp8, case_kda_prefill, case_group, case_mla_gather, case_mla_gather_fp8,
    case_mla_attend, case_kda_verify, case_kda_verify_rounds, case_sample;
extern const struct gpu_case_kind *const gpu_case_kinds[];
extern const size_t gpu_n_case_kinds;

/* Makes shape i; the seed decides the numbers. Aborts where there is no memory. */
void gpu_case_open(struct gpu_case *c, const struct gpu_case_kind *kind, bool large, size_t i,
                   struct gpu_shape shape, uint64_t seed);
void gpu_case_close(struct gpu_case *c);
/* Launch i of 1 + n_then, and its record. */
static inline const struct gpu_launch *gpu_case_launch(const struct gpu_case *c, int i) {
    return i ? &c->then[i - 1] : &c->launch;
}
static inline const union gpu_record *gpu_case_record(const struct gpu_case *c, int i) {
    return i && c->has_other[i - 1] ? &c->other[i - 1] : &c->record;
}
/* Whether all that lies between the pieces is untouched. */
bool gpu_case_gaps_intact(const struct gpu_case *c);

/* --- for makers */

/* Memory a kernel sees, 16-byte aligned, NaN. */
void *case_take(struct gpu_case *c, size_t bytes);
/* Memory it does not see, zero. */
void *case_host(struct gpu_case *c, size_t bytes);
uint64_t case_bits(struct gpu_case *c);
double case_unit(struct gpu_case *c); /* uniform in [0, 1) */
float case_float(struct gpu_case *c, float scale);
/* The nearest BF16 of such a number, as f32. */
float case_bf16(struct gpu_case *c, float scale);
/* n BF16 numbers into kernel memory. */
uint16_t *case_bf16_vector(struct gpu_case *c, size_t n, float scale);
float *case_f32_vector(struct gpu_case *c, size_t n, float scale, float offset);

/* Rows in both worlds: `host` f32 and, with `stride` as kernels want it, BF16 or f32 on `kernel`.
 */
struct case_rows {
    struct tensor host;
    uint16_t *h;
    float *f;
    uint32_t rows, stride;
    uint32_t every, group; /* every > 1: of so many groups of rows only the first is compared */
};
/* What to take for `every` where each group of results is so much work for the reference. */
uint32_t case_every(uint32_t groups, double products_each);
/* Random rows; BF16: numbers that are BF16. */
struct case_rows case_rows(struct gpu_case *c, uint32_t rows, uint32_t cols, bool bf16,
                           float scale);
/* Rows nobody has written yet. */
struct case_rows case_blank(struct gpu_case *c, uint32_t rows, uint32_t cols, bool bf16);

/* Errors in units of what is allowed: BF16 results may be off by 2^-8 of themselves (the last place
 * may fall either way) and `slack` of the root mean square; f32 results by `slack` of it. */
double case_error_rows(const struct case_rows *r, double slack);
double case_error(const float *got, const float *want, size_t n, double slack);

/* One member of a team of one. */
struct work case_work(struct gpu_case *c, size_t scratch_bytes);

#endif
