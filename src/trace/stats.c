/* stats.c: totals of a trace and the reuse that a cache without limits would find. Called by bench,
 * plan and tests. */
#include "trace/seen_blocks.h"
#include "trace/trace.h"

#include <string.h>

static void add_request(struct trace_stats *to, const struct trace_request *r, uint64_t hits,
                        uint32_t block_tokens) {
    uint64_t tokens = hits * block_tokens;
    to->requests++;
    to->agent_requests += r->agent >= 0;
    to->sum_in += r->in;
    to->sum_out += r->has_out ? r->out : 0;
    to->max_in = r->in > to->max_in ? r->in : to->max_in;
    to->blocks += r->n_blocks;
    to->hits += hits;
    to->hit_tokens += tokens < r->in ? tokens : r->in;
}

weir_status trace_count(const struct trace *t, struct trace_stats *per_session,
                        struct trace_stats *total, weir_error *err) {
    struct seen seen = {0};
    uint32_t *order = trace_by_time(t);
    bool ok = order;
    *total = (struct trace_stats){.agents = t->n_agents};
    for (uint32_t i = 0; per_session && i < t->n_sessions; i++)
        per_session[i] = (struct trace_stats){.agents = t->sessions[i].n_agents};
    for (uint32_t i = 0; ok && i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[order[i]];
        const struct trace_session *s = &t->sessions[r->session];
        uint64_t hits;
        ok = seen_hits(&seen, r, s->space, &hits);
        add_request(total, r, hits, s->block_tokens);
        if (per_session)
            add_request(&per_session[r->session], r, hits, s->block_tokens);
    }
    seen_free(&seen);
    free(order);
    return ok ? WEIR_OK
              : weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for its block numbers");
}

bool trace_hit_rate(const struct trace_stats *s, double *out) {
    if (s->blocks == 0)
        return false;
    *out = (double)s->hits / (double)s->blocks;
    return true;
}

/* ---------------------------------------------------------------------------------------- order */

static int by_time(const void *a, const void *z, void *arg) {
    const struct trace_request *r = arg, *x = &r[*(const uint32_t *)a],
                               *y = &r[*(const uint32_t *)z];
    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

uint32_t *trace_by_time(const struct trace *t) {
    uint32_t *order = malloc((t->n_requests ? t->n_requests : 1) * sizeof *order);
    for (uint32_t i = 0; order && i < t->n_requests; i++)
        order[i] = i;
    if (order)
        qsort_r(order, t->n_requests, sizeof *order, by_time, t->requests);
    return order;
}
