/* fuzz_trace.c: any bytes as a trace; the first says of which format. What is accepted keeps the
 * promises of trace.h and tree.h, its counts and prompts can be had, and all of it can be played;
 * what is refused says where. */
#include "trace/schedule.h"

#include <string.h>

static void check_requests(const struct trace *t) {
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[i];
        uint64_t block = t->sessions[r->session].block_tokens;
        WEIR_ASSERT(r->n_blocks <= r->in / block + (r->in % block != 0));
        WEIR_ASSERT(r->t >= 0 && (r->n_texts > 0) == (r->text != NULL));
        WEIR_ASSERT(r->in <= UINT64_C(1) << 53 && r->out <= UINT64_C(1) << 53);
        size_t bytes = 0;
        for (uint32_t k = 0; k < r->n_texts; k++)
            bytes += strlen(r->text + bytes) + 1;
        if (r->answer)
            bytes += strlen(r->answer);
        if (r->system)
            bytes += strlen(r->system);
        WEIR_ASSERT(bytes < SIZE_MAX / 2 && trace_first_turn(t, r) <= r);
        struct trace_play play = {1, 10, 20, (double[]){0, 1, 0.3, 1.7}[i % 4]};
        int32_t ids[200];
        uint64_t in = trace_scaled_in(r, play.length_scale), n = in < 200 ? in : 200;
        trace_prompt_ids(t, r, &play, in - n, n, ids);
        for (uint64_t k = 0; k < n; k++)
            WEIR_ASSERT(ids[k] >= 10 && ids[k] < 20);
    }
}

static void check_chains(const struct trace *t) {
    uint32_t at = 0, agents = 0;
    for (uint32_t s = 0; s < t->n_sessions; s++) {
        const struct trace_session *x = &t->sessions[s];
        WEIR_ASSERT(x->first == at && x->first_agent == agents && x->n_own <= x->n_requests);
        for (uint32_t i = 0; i < x->n_requests; i++)
            WEIR_ASSERT(t->requests[at + i].session == s &&
                        (t->requests[at + i].agent < 0) == (i < x->n_own));
        uint32_t of_agents = x->n_own;
        for (uint32_t a = agents; a < agents + x->n_agents; a++) {
            const struct trace_agent *g = &t->agents[a];
            WEIR_ASSERT(g->session == s && g->first == at + of_agents && g->after <= x->n_own);
            for (uint32_t i = 0; i < g->n_requests; i++)
                WEIR_ASSERT(t->requests[g->first + i].agent == (int32_t)a);
            of_agents += g->n_requests;
        }
        WEIR_ASSERT(of_agents == x->n_requests);
        at += x->n_requests;
        agents += x->n_agents;
    }
    WEIR_ASSERT(at == t->n_requests && agents == t->n_agents);
}

/* Every call of the trees is sent once, whatever the times are. */
static void check_play(const struct trace *t) {
    struct tree tree;
    struct schedule *s;
    struct call call, under_way[64];
    struct lanes_options o = lanes_options_default();
    o.once = true;
    o.duration = 0;
    o.lanes = 3;
    o.warmup_calls = UINT32_MAX;
    WEIR_ASSERT(tree_build(t, &tree, NULL) == WEIR_OK);
    WEIR_ASSERT(tree.n_calls + tree.dropped_calls == t->n_requests);
    int64_t now = 0;
    uint32_t sent = 0;
    bool ok = schedule_lanes(&tree, &o, now, &s, NULL) == WEIR_OK;
    WEIR_ASSERT(ok == (tree.n_calls > 0));
    while (ok && schedule_phase(s) != PHASE_ENDED) {
        uint32_t n = 0;
        for (; n < 64 && schedule_next(s, now, &call); sent++)
            under_way[n++] = call;
        for (uint32_t i = 0; i < n; i++)
            schedule_done(s, under_way[i].ticket, now, CALL_OK);
        int64_t wake = schedule_wake(s, now);
        WEIR_ASSERT(wake <= now + o.system_idle_cap || schedule_phase(s) == PHASE_ENDED);
        now = wake > now ? wake : now;
    }
    WEIR_ASSERT(sent == tree.n_calls);
    if (ok)
        schedule_free(s);
    tree_free(&tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 2)
        return 0;
    struct trace t;
    weir_error err = {0};
    FILE *in = fmemopen((void *)(uintptr_t)(data + 1), bytes - 1, "rb");
    WEIR_ASSERT(in);
    weir_status s = trace_read_stream(in, "trace", (enum trace_format)(data[0] % TRACE_FORMATS),
                                      NULL, &t, &err);
    fclose(in);
    if (s) {
        WEIR_ASSERT(err.code == s && err.message[0] && !strncmp(err.where, "trace", 5));
        WEIR_ASSERT(!t.requests && t.n_requests == 0);
        return 0;
    }
    check_requests(&t);
    check_chains(&t);
    struct trace_stats c;
    WEIR_ASSERT(trace_count(&t, NULL, &c, NULL) == WEIR_OK);
    WEIR_ASSERT(c.requests == t.n_requests && c.hits <= c.blocks && c.hit_tokens <= c.sum_in);
    check_play(&t);
    trace_free(&t);
    return 0;
}
