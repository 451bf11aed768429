/* kernels_call.c: see kernels_call.h. Called by kernels_check.c
 * and kernels.c.
 * Invariant that bites: the clock starts behind a first barrier. A team that slept wakes in its own
 * time, and a step wakes it once for hundreds of operations. */
#include "bench/kernels_call.h"

#include "base/clock.h"

struct call {
    struct kernel_work *w;
    const struct column *column;
    struct team *team;
    unsigned char *scratch;
    size_t each;
    uint32_t first, calls, members;
    uint64_t start, end;
};

static size_t each_bytes(const struct kernel_work *w, const struct column *column) {
    size_t most = 0;
    for (uint32_t i = 0; i < w->n_ops; i++) {
        struct op other;
        const struct op *op = kernel_op_for(column, &w->op[i], &other);
        size_t n = column->scratch_bytes(op, w->batch.n_rows, w->max_position);
        most = n > most ? n : most;
    }
    return (most + 4095) & ~(size_t)4095;
}

static size_t shared_bytes(const struct kernel_work *w, const struct column *column,
                           uint32_t members) {
    size_t most = 0;
    for (uint32_t i = 0; i < w->n_ops; i++) {
        struct op other;
        const struct op *op = kernel_op_for(column, &w->op[i], &other);
        size_t n = column_shared_bytes(column, op, w->batch.n_rows, members);
        most = n > most ? n : most;
    }
    return (most + 4095) & ~(size_t)4095;
}

size_t kernel_scratch_bytes(const struct kernel_work *w, const struct column *column,
                            uint32_t members) {
    size_t all;
    if (__builtin_add_overflow(size_mul(each_bytes(w, column), members),
                               shared_bytes(w, column, members), &all))
        return SIZE_MAX;
    return all;
}

static void call_member(void *arg, uint32_t member) {
    struct call *c = arg;
    struct work work = {.index = member, .count = c->members, .team = c->team};
    if (c->scratch) {
        work.scratch = c->scratch + member * c->each;
        work.shared = c->scratch + c->members * c->each;
    }
    struct op other;
    team_barrier(c->team, member);
    if (member == 0)
        c->start = clock_ns();
    for (uint32_t i = 0; i < c->calls; i++) {
        const struct op *op =
            kernel_op_for(c->column, &c->w->op[(c->first + i) % c->w->n_ops], &other);
        uint32_t passes = column_passes(c->column, op, &c->w->batch);
        for (work.pass = 0; work.pass < passes; work.pass++) {
            column_run(c->column, op, &c->w->batch, c->w->batch.ids, work);
            team_barrier(c->team, member);
        }
    }
    if (member == 0)
        c->end = clock_ns();
}

double kernel_call(struct kernel_work *w, const struct column *column, struct team *team,
                   void *scratch, uint32_t first, uint32_t calls) {
    struct call c = {.w = w,
                     .column = column,
                     .team = team,
                     .scratch = scratch,
                     .each = each_bytes(w, column),
                     .first = first,
                     .calls = calls,
                     .members = team_threads(team)};
    team_run(team, call_member, &c);
    return (double)(c.end - c.start) * 1e-9;
}
