/* replay_cache.c: what checkpoint policies find in a trace, with ample memory and with pools of a
 * part of what the default policy would fill. Sizes are those of Kimi K3 (BF16 history, f32
 * states); nothing is computed.
 *
 *   replay_cache [--trace FILE] [--format F] [--concurrency N] [--pools 10,25,50,100]
 *                [--shares 10,30,50] [--policies P,P,...] [--recorded-answers] [--all] [--json]
 *                [--check] [--slack POINTS]
 *
 * A pool is a budget in bytes, a share of the working set: the pages and states the default policy
 * holds at the end with ample memory, which is what it would keep of this trace for ever. How the
 * budget is split between pages and states is tried out for each policy (--shares: percent for
 * states), and each is shown with its best split, so that none is judged by another's. --all shows
 * every split. --check exits 1 where a promise of the default policy is broken: with ample memory
 * within half a point of a cache that never forgets, and at most half the state bytes of a state at
 * every block; everywhere at most half as many states written as that, and not more than --slack
 * points (0) fewer hits than end-of-prompt alone. */
#include "tests/trace/replay.h"

#include "forward/program.h"
#include "model/presets.h"

#include <getopt.h>
#include <jansson.h>
#include <string.h>

enum { MOST = 16 };

struct args {
    const char *file, *policies;
    enum trace_format format;
    uint32_t concurrency, step_rows;
    uint32_t pools[MOST], n_pools, shares[MOST], n_shares;
    double slack; /* of rates */
    bool recorded_answers, all, check, json;
};

struct policy {
    char name[64];
    struct checkpoint_policy rules;
};

struct bench {
    struct args args;
    struct trace trace;
    uint32_t *order;
    struct trace_stats stats;
    uint64_t page_bytes, state_bytes, working_set;
    struct policy policy[MOST];
    uint32_t n_policies;
    json_t *rows;
    uint32_t kept, broken; /* promises */
};

/* One cell of the table. */
struct cell {
    struct replay_result r;
    uint32_t pages, slots, share; /* share: percent of the budget that went to states */
    bool fits;
};

static void fail(const char *what, const char *value) {
    fprintf(stderr, "replay_cache: %s: '%s' is not allowed\n", what, value);
    exit(2);
}

static uint32_t parse_list(const char *name, const char *text, uint32_t out[MOST]) {
    uint32_t n = 0;
    for (const char *at = text; *at;) {
        char *end;
        unsigned long x = strtoul(at, &end, 10);
        if (end == at || x == 0 || x > 100 || n == MOST || (*end && *end != ','))
            fail(name, text);
        out[n++] = (uint32_t)x;
        at = *end ? end + 1 : end;
    }
    return n;
}

static uint32_t parse_number(const char *name, const char *text) {
    char *end;
    unsigned long x = strtoul(text, &end, 10);
    if (end == text || *end || x == 0 || x > 100000)
        fail(name, text);
    return (uint32_t)x;
}

static double parse_points(const char *text) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x >= 0 && x <= 100))
        fail("--slack", text);
    return x / 100;
}

static void parse_args(int argc, char **argv, struct args *a) {
    static const struct option options[] = {
        {"trace", 1, NULL, 't'},
        {"format", 1, NULL, 'f'},
        {"concurrency", 1, NULL, 'c'},
        {"step-rows", 1, NULL, 'r'},
        {"pools", 1, NULL, 'p'},
        {"shares", 1, NULL, 's'},
        {"policies", 1, NULL, 'P'},
        {"recorded-answers", 0, NULL, 'R'},
        {"all", 0, NULL, 'a'},
        {"check", 0, NULL, 'k'},
        {"json", 0, NULL, 'j'},
        {"slack", 1, NULL, 'S'},
        {0},
    };
    *a = (struct args){.file = "../shared/traces/cc_weka_excerpt_a.jsonl",
                       .policies = "end-of-prompt,interval:64,default",
                       .concurrency = 16,
                       .step_rows = 8192,
                       .pools = {10, 25, 50, 100},
                       .n_pools = 4,
                       .shares = {30, 40, 50, 60, 75, 85, 92},
                       .n_shares = 7};
    weir_error err;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (c) {
        case 't': a->file = optarg; break;
        case 'f':
            if (trace_format_parse(optarg, &a->format, &err))
                fail("--format", optarg);
            break;
        case 'c': a->concurrency = parse_number("--concurrency", optarg); break;
        case 'r': a->step_rows = parse_number("--step-rows", optarg); break;
        case 'p': a->n_pools = parse_list("--pools", optarg, a->pools); break;
        case 's': a->n_shares = parse_list("--shares", optarg, a->shares); break;
        case 'P': a->policies = optarg; break;
        case 'R': a->recorded_answers = true; break;
        case 'a': a->all = true; break;
        case 'k': a->check = true; break;
        case 'S': a->slack = parse_points(optarg); break;
        case 'j': a->json = true; break;
        default: exit(2);
        }
}

static void parse_policies(struct bench *b) {
    weir_error err;
    for (const char *at = b->args.policies; *at;) {
        size_t n = strcspn(at, ",");
        struct policy *p = &b->policy[b->n_policies++];
        if (b->n_policies == MOST || n >= sizeof p->name)
            fail("--policies", b->args.policies);
        memcpy(p->name, at, n);
        if (checkpoint_policy_parse(p->name, &p->rules, &err)) {
            fprintf(stderr, "replay_cache: %s: %s\n", err.where, err.message);
            exit(2);
        }
        at += n + (at[n] == ',');
    }
}

static const struct policy *policy_named(const struct bench *b, const char *name) {
    for (uint32_t i = 0; i < b->n_policies; i++)
        if (!strcmp(b->policy[i].name, name))
            return &b->policy[i];
    return NULL;
}

/* Bytes of one page and one state of Kimi K3, as the pools hold them. */
static void k3_bytes(struct bench *b) {
    const char *text = model_preset("kimi-k3");
    struct model m;
    weir_error err;
    if (model_parse(text, strlen(text), "kimi-k3", &m, &err)) {
        fprintf(stderr, "replay_cache: %s: %s\n", err.where, err.message);
        exit(1);
    }
    b->page_bytes = (uint64_t)model_mla_layers(&m) * PAGE_TOKENS * (m.kv_lora + m.rope_dim) * 2;
    b->state_bytes = program_state_slot_floats(&m) * sizeof(float);
}

/* -------------------------------------------------------------------------------------- running */

static double rate(const struct replay_result *r) {
    return (double)r->cached_tokens / (double)r->prompt_tokens;
}

static uint64_t stored(const struct replay_result *r) {
    uint64_t n = 0;
    for (int i = 0; i < WEIR_CHECKPOINT_REASONS; i++)
        n += r->end.checkpoints_stored[i];
    return n;
}

static struct cell run(const struct bench *b, const struct policy *p, uint32_t pages,
                       uint32_t slots) {
    struct cell c = {.pages = pages, .slots = slots, .fits = true};
    struct replay_setup setup = {
        .trace = &b->trace,
        .order = b->order,
        .pages = pages,
        .slots = slots,
        .policy = p->rules,
        .concurrency = b->args.concurrency,
        .step_rows = b->args.step_rows,
        .recorded_answers = b->args.recorded_answers,
    };
    replay_run(&setup, &c.r, NULL);
    return c;
}

static void show(struct bench *b, const char *pool, const struct policy *p, const struct cell *c) {
    const weir_stats *s = &c->r.end;
    double gb = 1e-9 * (double)b->state_bytes;
    if (!b->args.json)
        printf("%-6s %-14s %4u%% %7u %6u  %7.3f%% %7" PRIu64 " %7u %9.1f %10.1f %10" PRIu64
               " %8" PRIu64 " %8" PRIu64 " %6" PRIu64 " %6.1f\n",
               pool, p->name, c->share, c->pages, c->slots, 100 * rate(&c->r), stored(&c->r),
               c->r.most_states, gb * c->r.most_states, gb * (double)stored(&c->r),
               s->stateless_tokens, s->states_evicted, s->pages_evicted, s->preemptions,
               c->r.seconds);
    fflush(stdout);
    json_t *by_reason = json_object();
    for (int i = 0; i < WEIR_CHECKPOINT_REASONS; i++)
        json_object_set_new(by_reason, weir_checkpoint_reason(i),
                            json_pack("{s:I,s:I}", "stored", (json_int_t)s->checkpoints_stored[i],
                                      "resumed", (json_int_t)s->checkpoints_resumed[i]));
    json_array_append_new(
        b->rows,
        json_pack("{s:s,s:s,s:i,s:i,s:i,s:f,s:I,s:I,s:I,s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "pool",
                  pool, "policy", p->name, "state_share_pct", (int)c->share, "pages", (int)c->pages,
                  "slots", (int)c->slots, "token_hit_rate", rate(&c->r), "prompt_tokens",
                  (json_int_t)c->r.prompt_tokens, "cached_tokens", (json_int_t)c->r.cached_tokens,
                  "states_stored", (json_int_t)stored(&c->r), "most_states_held",
                  (int)c->r.most_states, "most_state_bytes",
                  (json_int_t)(c->r.most_states * b->state_bytes), "stateless_tokens",
                  (json_int_t)s->stateless_tokens, "states_evicted", (json_int_t)s->states_evicted,
                  "pages_evicted", (json_int_t)s->pages_evicted, "unplaced",
                  (json_int_t)s->checkpoints_unplaced, "preemptions", (json_int_t)s->preemptions,
                  "reasons", by_reason));
}

/* The best split of a budget for a policy; fits is false where none holds the longest prompt. */
static struct cell best_split(struct bench *b, const char *pool, const struct policy *p,
                              uint64_t budget) {
    struct cell best = {0};
    uint32_t need = replay_longest(&b->trace) / PAGE_TOKENS + 2;
    uint32_t ample = replay_ample(&b->trace, b->args.concurrency);
    for (uint32_t i = 0; i < b->args.n_shares; i++) {
        uint64_t for_states = budget / 100 * b->args.shares[i];
        uint64_t slots = for_states / b->state_bytes;
        uint64_t pages = (budget - for_states) / b->page_bytes;
        if (pages < need || slots < 2)
            continue;
        struct cell c = run(b, p, (uint32_t)(pages < ample ? pages : ample),
                            (uint32_t)(slots < ample ? slots : ample));
        c.share = b->args.shares[i];
        if (b->args.all)
            show(b, pool, p, &c);
        if (!best.fits || rate(&c.r) > rate(&best.r))
            best = c;
    }
    return best;
}

/* --------------------------------------------------------------------------------------- promises
 */

static void promise(struct bench *b, bool kept, const char *pool, const char *what, double got,
                    double limit) {
    b->kept += kept;
    if (kept)
        return;
    b->broken++;
    fprintf(stderr, "replay_cache: pool %s: %s: %g against %g\n", pool, what, got, limit);
}

static void compare(struct bench *b, const char *pool, const struct cell cells[MOST]) {
    const struct policy *base = policy_named(b, "default"), *prompt, *every;
    const struct cell *d = base ? &cells[base - b->policy] : NULL;
    if (!d || !d->fits)
        return;
    if ((prompt = policy_named(b, "end-of-prompt"))) {
        const struct cell *o = &cells[prompt - b->policy];
        promise(b, rate(&d->r) + b->args.slack >= rate(&o->r), pool,
                "default hits less than end-of-prompt alone", rate(&d->r), rate(&o->r));
    }
    if ((every = policy_named(b, "interval:64"))) {
        const struct cell *o = &cells[every - b->policy];
        promise(b, 2 * stored(&d->r) <= stored(&o->r), pool,
                "default stores more than half the states of interval:64", (double)stored(&d->r),
                (double)stored(&o->r));
        if (!strcmp(pool, "ample"))
            promise(b, 2 * d->r.most_states <= o->r.most_states, pool,
                    "default holds more than half the states of interval:64", d->r.most_states,
                    o->r.most_states);
    }
}

static double infinite(const struct bench *b) {
    return (double)b->stats.hit_tokens / (double)b->stats.sum_in;
}

static void ample_pool(struct bench *b) {
    struct cell cells[MOST] = {0};
    uint32_t ample = replay_ample(&b->trace, b->args.concurrency);
    struct policy plain = {.name = "default", .rules = checkpoint_policy_default()};
    for (uint32_t i = 0; i < b->n_policies; i++) {
        cells[i] = run(b, &b->policy[i], ample, ample);
        show(b, "ample", &b->policy[i], &cells[i]);
    }
    const struct policy *listed = policy_named(b, "default");
    struct cell d = listed ? cells[listed - b->policy] : run(b, &plain, ample, ample);
    b->working_set = d.r.end.pages_cached * b->page_bytes + d.r.end.slots_cached * b->state_bytes;
    if (!b->args.json)
        printf("working set: %" PRIu64 " pages and %" PRIu64 " states, %.1f GB\n",
               d.r.end.pages_cached, d.r.end.slots_cached, 1e-9 * (double)b->working_set);
    promise(b, rate(&d.r) >= infinite(b) - 0.005, "ample",
            "default is more than half a point below a cache that never forgets", rate(&d.r),
            infinite(b));
    compare(b, "ample", cells);
}

static void bounded_pools(struct bench *b) {
    for (uint32_t i = 0; i < b->args.n_pools; i++) {
        struct cell cells[MOST] = {0};
        char pool[16];
        snprintf(pool, sizeof pool, "%u%%", b->args.pools[i]);
        for (uint32_t k = 0; k < b->n_policies; k++) {
            cells[k] = best_split(b, pool, &b->policy[k], b->working_set / 100 * b->args.pools[i]);
            if (cells[k].fits && !b->args.all)
                show(b, pool, &b->policy[k], &cells[k]);
            else if (!cells[k].fits && !b->args.json)
                printf("%-6s %-14s holds not even the longest prompt\n", pool, b->policy[k].name);
        }
        compare(b, pool, cells);
    }
}

int main(int argc, char **argv) {
    struct bench b = {.rows = json_array()};
    weir_error err;
    parse_args(argc, argv, &b.args);
    parse_policies(&b);
    k3_bytes(&b);
    if (trace_read(b.args.file, b.args.format, NULL, &b.trace, &err) ||
        trace_count(&b.trace, NULL, &b.stats, &err)) {
        fprintf(stderr, "replay_cache: %s: %s\n", err.where, err.message);
        return 1;
    }
    b.order = trace_by_time(&b.trace);
    if (!b.args.json)
        printf("%" PRIu64 " requests, %" PRIu64 " prompt tokens, never forgetting: %.3f %% of "
               "tokens\npage %" PRIu64 " bytes, state %" PRIu64 " bytes\n"
               "%-6s %-14s %5s %7s %6s  %8s %7s %7s %9s %10s %10s %8s %8s %6s %6s\n",
               b.stats.requests, b.stats.sum_in, 100 * infinite(&b), b.page_bytes, b.state_bytes,
               "pool", "policy", "share", "pages", "slots", "hits", "stored", "held", "held GB",
               "written GB", "stateless", "ev.stat", "ev.page", "preempt", "s");
    ample_pool(&b);
    bounded_pools(&b);
    if (b.args.json) {
        json_t *top = json_pack(
            "{s:I,s:I,s:f,s:I,s:I,s:I,s:O}", "requests", (json_int_t)b.stats.requests,
            "prompt_tokens", (json_int_t)b.stats.sum_in, "infinite_token_hit_rate", infinite(&b),
            "page_bytes", (json_int_t)b.page_bytes, "state_bytes", (json_int_t)b.state_bytes,
            "working_set_bytes", (json_int_t)b.working_set, "rows", b.rows);
        json_dumpf(top, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(top);
    }
    if (b.args.check)
        fprintf(stderr, "%" PRIu32 " passed, %" PRIu32 " failed\n", b.kept, b.broken);
    json_decref(b.rows);
    free(b.order);
    trace_free(&b.trace);
    return b.args.check && b.broken ? 1 : 0;
}
