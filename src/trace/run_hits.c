/* run_hits.c: what a cache that never forgets would have found in a run. Called by the replay when
 * it has ended. A play is a name space of its own: block numbers of two plays name different
 * tokens. */
#include "trace/run.h"
#include "trace/seen_blocks.h"

#include <stdlib.h>

static int by_start(const void *a, const void *b) {
    const struct call_record *x = *(const struct call_record *const *)a;
    const struct call_record *y = *(const struct call_record *const *)b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

weir_status run_count_hits(struct run *r, const struct trace *t, weir_error *err) {
    struct call_record **order = calloc(r->n_records ? r->n_records : 1, sizeof *order);
    struct seen seen = {0};
    bool ok = order;
    for (uint32_t i = 0; ok && i < r->n_records; i++)
        order[i] = &r->records[i];
    if (ok)
        qsort(order, r->n_records, sizeof *order, by_start);
    for (uint32_t i = 0; ok && i < r->n_records; i++) {
        struct call_record *c = order[i];
        WEIR_ASSERT(c->request < t->n_requests);
        const struct trace_request *q = &t->requests[c->request];
        c->blocks = q->n_blocks;
        c->hit_blocks = 0;
        c->hit_tokens = 0;
        if (c->skipped || c->error_type[0] || c->was_cancelled)
            continue;
        uint64_t hits;
        ok = seen_hits(&seen, q, c->play, &hits);
        if (!ok)
            break;
        /* Scaled, k blocks fill the first floor(k x block x scale) positions of a prompt. */
        double scale = r->length_scale > 0 ? r->length_scale : 1;
        uint64_t in = c->in_expected ? c->in_expected : q->in;
        uint64_t tokens = (uint64_t)((double)(hits * t->sessions[q->session].block_tokens) * scale);
        c->hit_blocks = (uint32_t)hits;
        c->hit_tokens = tokens < in ? tokens : in;
    }
    free(order);
    seen_free(&seen);
    return ok ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, "run", "no memory for seen blocks");
}
