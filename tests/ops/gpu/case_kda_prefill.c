/* case_kda_prefill.c: rows of several sequences through Kimi Delta Attention: any number of them
 * from any position, states kept, taken from elsewhere, new, absent, and copied to checkpoints. */
#include "tests/ops/gpu/case_kda.h"

#include <stdio.h>

#define SHAPES(NAME) NAME, sizeof NAME / sizeof *NAME

enum { CHECKPOINTS = 8 }; /* of a sequence at most */

/* Heads, dim, taps, softplus instead of bounded decay, then rows of up to four sequences. They
 * begin at positions 0, 37, 64 and 127, with a new state, that of their slot, one from elsewhere,
 * and none; those with rows at multiples of 64 have checkpoints. */
static void make(struct gpu_case *c, const uint32_t *p, struct gpu_shape shape) {
    static const uint32_t starts[4] = {0, 37, 64, 127};
    uint32_t heads = p[0], dim = p[1], taps = p[2], n = 0, rows = 0;
    for (; n < 4 && p[4 + n]; n++)
        rows += p[4 + n];
    bool large = rows > 1000;
    struct case_kda *k =
        case_kda_open(c, rows, heads, dim, taps, p[3], large ? n : 2 * n + CHECKPOINTS);
    struct gpu_kda_span *seqs = case_take(c, n * sizeof *seqs);
    struct gpu_kda_checkpoint *checkpoints = case_take(c, CHECKPOINTS * sizeof *checkpoints);
    struct batch_seq *host = case_host(c, n * sizeof *host);
    struct batch_checkpoint *host_checkpoints =
        case_host(c, CHECKPOINTS * sizeof *host_checkpoints);
    for (uint32_t i = 0, row = 0, made = 0; i < n; row += p[4 + i++]) {
        uint32_t first = made, pos0 = large ? 0 : starts[i];
        int32_t slot = (int32_t)i, from = slot;
        if (!large && i % 4 == 0)
            from = -1;
        if (!large && i % 4 == 2)
            from = (int32_t)(n + i);
        if (!large && i % 4 == 3)
            slot = -1;
        for (uint32_t end = (pos0 / 64 + 1) * 64;
             !large && slot >= 0 && end <= pos0 + p[4 + i] && made < CHECKPOINTS; end += 64) {
            checkpoints[made] = (struct gpu_kda_checkpoint){end, (int32_t)(2 * n + made)};
            host_checkpoints[made] = (struct batch_checkpoint){end, checkpoints[made].slot};
            made++;
        }
        seqs[i] = (struct gpu_kda_span){row, p[4 + i], pos0, from, slot, first, made - first};
        host[i] = (struct batch_seq){.row0 = row,
                                     .rows = p[4 + i],
                                     .pos0 = pos0,
                                     .slot = slot,
                                     .from = from,
                                     .n_checkpoints = made - first,
                                     .checkpoints = host_checkpoints + first};
    }
    case_kda_want(c, k, &(struct batch){.n_rows = rows, .n_seqs = n, .seqs = host});
    struct gpu_kda_prefill *a = &c->record.kda_prefill;
    *a = (struct gpu_kda_prefill){.q = k->q.h,
                                  .k = k->k.h,
                                  .v = k->v.h,
                                  .go = k->go.h,
                                  .b = k->b.h,
                                  .z = k->z.h,
                                  .out = k->out.h,
                                  .q_taps = k->taps_of[0],
                                  .k_taps = k->taps_of[1],
                                  .v_taps = k->taps_of[2],
                                  .ea = k->ea,
                                  .dt = k->dt,
                                  .o_norm = k->o_norm,
                                  .state = k->state,
                                  .slot_floats = k->slot_floats,
                                  .seqs = seqs,
                                  .checkpoints = checkpoints,
                                  .n_seqs = n,
                                  .heads = heads,
                                  .dim = dim,
                                  .taps = taps,
                                  .stride = k->q.stride,
                                  .b_stride = k->b.stride,
                                  .z_stride = k->z.stride,
                                  .out_stride = k->out.stride,
                                  .lower_bound = k->op.lower_bound,
                                  .eps = k->op.eps};
    a->work = case_take(c, gpu_kda_prefill_bytes(a, rows, shape));
    c->launch = gpu_launch_kda_prefill_chunks(a, rows, shape);
    c->then[c->n_then++] = gpu_launch_kda_prefill_states(a, rows, shape);
    c->then[c->n_then++] = gpu_launch_kda_prefill_out(a, rows, shape);
    c->traffic = (double)rows * heads * dim * 6 * 2 + 2.0 * n * heads * dim * dim * 4;
    snprintf(c->label, sizeof c->label, "kda_prefill %u rows of %u sequences, %u heads of %u%s",
             rows, n, heads, dim, p[3] ? ", softplus" : "");
}
static const uint32_t small[][CASE_PARAMETERS] = {
    {2, 8, 4, 0, 1, 2, 3, 5},     {1, 16, 4, 1, 63, 64, 65, 7}, {1, 32, 3, 0, 127, 128, 129},
    {1, 64, 4, 0, 200, 2, 64, 3}, {2, 128, 4, 0, 67, 91},       {1, 128, 4, 1, 200},
    {1, 64, 2, 1, 3, 1, 1, 2},    {3, 32, 1, 0, 33, 27, 17, 9},
};
static const uint32_t large[][CASE_PARAMETERS] = {{12, 128, 4, 0, 1024},
                                                  {12, 128, 4, 0, 4096},
                                                  {12, 128, 4, 0, 16384},
                                                  {12, 128, 4, 0, 4096, 4096, 4096, 4096}};
const struct gpu_case_kind case_kda_prefill = {"kda_prefill", make, SHAPES(small), SHAPES(large)};
