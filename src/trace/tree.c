/* tree.c: flattens sessions into chains of calls: which follows which, after what wait, and what
 * waits for what. Called by the schedules, by bench and by plan.
 * A sub-agent is started by the last of its session's own calls that stands before it in the file,
 * and the next one waits for it. With none before it nobody would start it: it is left out and
 * counted. With none behind it nobody waits: it runs in the background.
 * Invariant that bites: a recorded think_time counts from the row before in the file, so it is the
 * wait of a call only where that row is also the call before it in its chain. */
#include "trace/tree.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDING_NS 1000                /* times were written as decimal seconds */
#define ODD_NS      INT64_C(1000000000) /* think times of public traces are whole seconds */

struct builder_of_trees {
    struct tree *tree;
    const struct trace *trace;
    uint32_t *order; /* the calls of one agent by time */
    uint32_t *chain; /* of each entry of order */
    int64_t *end;    /* recorded end of the last call of each chain */
    uint32_t n_links;
};

static int64_t end_of(const struct trace_request *r) {
    return r->t + (r->api_time > 0 ? r->api_time : 0);
}

static int64_t later(int64_t t, int64_t than) {
    return t > than ? t - than : 0;
}

static int64_t wait_between(struct tree *t, const struct trace_request *before,
                            const struct trace_request *r) {
    if (r->think_time >= 0 && r == before + 1) {
        int64_t by_times = later(r->t, end_of(before));
        t->odd_waits += llabs(r->think_time - by_times) > ODD_NS;
        return r->think_time;
    }
    if (r->delay >= 0)
        return r->delay;
    return later(r->t, end_of(before));
}

static struct tree_chain *add_chain(struct builder_of_trees *b, uint32_t session, int32_t agent) {
    struct tree *t = b->tree;
    struct tree_chain *c = &t->chains[t->n_chains++];
    *c = (struct tree_chain){.session = session,
                             .agent = agent,
                             .first = t->n_calls,
                             .spawned_by = TREE_NONE,
                             .joined_by = TREE_NONE};
    t->sessions[session].n_chains++;
    return c;
}

/* Behind the last call of the chain. */
static void add_call(struct builder_of_trees *b, struct tree_chain *c, uint32_t request,
                     int64_t first_wait) {
    struct tree *t = b->tree;
    const struct trace_request *r = &b->trace->requests[request];
    struct tree_call *call = &t->calls[c->first + c->n_calls];
    *call = (struct tree_call){.request = request,
                               .chain = (uint32_t)(c - t->chains),
                               .turn = c->n_calls,
                               .wait = first_wait};
    if (c->n_calls)
        call->wait = wait_between(t, &b->trace->requests[call[-1].request], r);
    c->n_calls++;
}

static int by_time(const void *a, const void *z, void *arg) {
    const struct trace_request *r = arg, *x = &r[*(const uint32_t *)a],
                               *y = &r[*(const uint32_t *)z];
    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Gives each call of the agent, in the order of their starts, the chain that fell idle last before
 * it, or a new one where all are busy. Returns how many chains there are. */
static uint32_t part_into_chains(struct builder_of_trees *b, const struct trace_agent *a) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_requests; i++)
        b->order[i] = a->first + i;
    qsort_r(b->order, a->n_requests, sizeof *b->order, by_time, b->trace->requests);
    for (uint32_t i = 0; i < a->n_requests; i++) {
        const struct trace_request *r = &b->trace->requests[b->order[i]];
        uint32_t best = n;
        for (uint32_t c = 0; c < n; c++)
            if (b->end[c] <= r->t + ROUNDING_NS && (best == n || b->end[c] > b->end[best]))
                best = c;
        n += best == n;
        b->chain[i] = best;
        b->end[best] = end_of(r);
    }
    return n;
}

static void add_agent(struct builder_of_trees *b, uint32_t session, uint32_t own, int32_t agent) {
    struct tree *t = b->tree;
    const struct trace_agent *a = &b->trace->agents[agent];
    if (a->after == 0) {
        t->sessions[session].dropped_agents++;
        t->dropped_agents++;
        t->dropped_calls += a->n_requests;
        return;
    }
    const struct trace_session *s = &b->trace->sessions[session];
    int64_t spawned = end_of(&b->trace->requests[s->first + a->after - 1]);
    uint32_t n = part_into_chains(b, a);
    struct tree_chain *chain = &t->chains[t->n_chains];
    for (uint32_t c = 0; c < n; c++) {
        add_chain(b, session, agent);
        chain[c].spawned_by = own + a->after - 1;
        chain[c].joined_by = a->after < s->n_own ? own + a->after : TREE_NONE;
    }
    /* Calls of a chain stand together, so room for each chain comes first. */
    for (uint32_t i = 0; i < a->n_requests; i++)
        chain[b->chain[i]].n_calls++;
    for (uint32_t c = 0, at = t->n_calls; c < n; c++) {
        chain[c].first = at;
        at += chain[c].n_calls;
        chain[c].n_calls = 0;
    }
    for (uint32_t i = 0; i < a->n_requests; i++) {
        int64_t start = i ? b->trace->requests[b->order[i]].t : a->t;
        add_call(b, &chain[b->chain[i]], b->order[i], later(start, spawned));
    }
    t->n_calls += a->n_requests;
}

/* Agents stand in the order of the file, so chains that one call starts or waits for are
 * neighbours. */
static void link_chains(struct builder_of_trees *b, uint32_t first) {
    struct tree *t = b->tree;
    for (uint32_t c = first; c < t->n_chains; c++) {
        const struct tree_chain *chain = &t->chains[c];
        if (chain->spawned_by == TREE_NONE)
            continue;
        struct tree_call *from = &t->calls[chain->spawned_by];
        if (!from->n_spawns++)
            from->first_spawn = b->n_links;
        if (chain->joined_by != TREE_NONE) {
            struct tree_call *to = &t->calls[chain->joined_by];
            if (!to->n_joins++)
                to->first_join = b->n_links;
        }
        t->spawns[b->n_links] = t->joins[b->n_links] = c;
        b->n_links++;
    }
}

static void add_session(struct builder_of_trees *b, uint32_t session) {
    struct tree *t = b->tree;
    const struct trace_session *s = &b->trace->sessions[session];
    const struct trace_request *r = b->trace->requests + s->first;
    t->sessions[session].first_chain = t->n_chains;
    uint32_t own = t->n_calls;
    if (s->n_own) {
        struct tree_chain *chain = add_chain(b, session, -1);
        for (uint32_t i = 0; i < s->n_own; i++)
            add_call(b, chain, s->first + i, 0);
        t->n_calls += s->n_own;
        t->sessions[session].span = later(r[s->n_own - 1].t, r[0].t);
    }
    for (uint32_t a = 0; a < s->n_agents; a++)
        add_agent(b, session, own, (int32_t)(s->first_agent + a));
    link_chains(b, t->sessions[session].first_chain);
}

weir_status tree_build(const struct trace *trace, struct tree *out, weir_error *err) {
    size_t n = (size_t)trace->n_requests + 1;
    *out = (struct tree){.trace = trace};
    struct builder_of_trees b = {.tree = out, .trace = trace};
    out->calls = calloc(n, sizeof *out->calls);
    out->chains = calloc(n, sizeof *out->chains);
    out->sessions = calloc((size_t)trace->n_sessions + 1, sizeof *out->sessions);
    out->joins = calloc(n, sizeof *out->joins);
    out->spawns = calloc(n, sizeof *out->spawns);
    b.order = calloc(n, sizeof *b.order);
    b.chain = calloc(n, sizeof *b.chain);
    b.end = calloc(n, sizeof *b.end);
    bool ok = out->calls && out->chains && out->sessions && out->joins && out->spawns && b.order &&
              b.chain && b.end;
    for (uint32_t s = 0; ok && s < trace->n_sessions; s++)
        add_session(&b, s);
    free(b.order);
    free(b.chain);
    free(b.end);
    if (ok)
        return WEIR_OK;
    tree_free(out);
    return weir_fail(err, WEIR_NO_MEMORY, "trace", "no memory for the trees of its sessions");
}

void tree_free(struct tree *t) {
    free(t->calls);
    free(t->chains);
    free(t->sessions);
    free(t->joins);
    free(t->spawns);
    *t = (struct tree){0};
}
