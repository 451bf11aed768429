/* random.c: a trace of chosen lengths, so that fixed-length workloads run by the same schedules as
 * recorded ones. Called by bench and by plan.
 * All blocks of a prompt have numbers, its own beside those of the prefix, so that the reuse that
 * is reported is the share of the prefix. The prefix must be whole blocks. */
#include "trace/builder.h"

#include "base/rng.h"
#include "base/plural.h"

#include <math.h>

enum { STREAM_IN = 0x61, STREAM_OUT = 0x62, USUAL_BLOCK = 64 };
/* The longest prompt that a body can hold, and as many tokens of all prompts as their block numbers
 * take half a gigabyte for. */
#define LENGTH_MAX (UINT64_C(1) << 25)
#define SUM_MAX    (UINT64_C(1) << 32)

/* The divisor of `prefix` that is nearest to the usual block by its ratio to it. */
static uint32_t block_for(uint64_t prefix) {
    uint64_t best = 0;
    double least = INFINITY;
    for (uint64_t d = 1; d * d <= prefix; d++) {
        if (prefix % d)
            continue;
        uint64_t pair[] = {d, prefix / d};
        for (int i = 0; i < 2; i++) {
            double far = fabs(log2((double)pair[i] / USUAL_BLOCK));
            if (far < least) {
                least = far;
                best = pair[i];
            }
        }
    }
    return best ? (uint32_t)best : USUAL_BLOCK;
}

static uint64_t length_of(uint64_t mean, double range, uint64_t bits) {
    double low = floor((double)mean * (1 - range)), high = ceil((double)mean * (1 + range));
    double x = low + floor(rng_unit(bits) * (high - low + 1));
    return x < 1 ? 1 : (uint64_t)x;
}

static weir_status check(const struct trace_random *o, weir_error *err) {
    if (o->requests == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "requests", "must be 1 or more, not 0");
    if (o->in > LENGTH_MAX || o->out > LENGTH_MAX || o->prefix_len > LENGTH_MAX)
        return weir_fail(err, WEIR_BAD_VALUE,
                         o->in > LENGTH_MAX    ? "in"
                         : o->out > LENGTH_MAX ? "out"
                                               : "prefix_len",
                         "must be at most 2^25 tokens");
    if (!(o->range >= 0 && o->range < 1))
        return weir_fail(err, WEIR_BAD_VALUE, "range", "must be 0 or more and below 1, not %g",
                         o->range);
    if (o->requests * (o->in + o->prefix_len) > SUM_MAX)
        return weir_fail(err, WEIR_BAD_VALUE, "requests",
                         "%" PRIu32 " %s of %" PRIu64 " tokens each come to more than 2^32 tokens",
                         o->requests, plural(o->requests, "prompt", "prompts"),
                         o->in + o->prefix_len);
    return WEIR_OK;
}

struct numbers {
    uint64_t *id;
    uint64_t room, next;
};

static weir_status add_request(struct builder *b, const struct trace_random *o, uint32_t i,
                               uint32_t block, struct numbers *numbers) {
    struct trace_request r = {.agent = -1,
                              .delay = TRACE_ABSENT,
                              .api_time = TRACE_ABSENT,
                              .think_time = TRACE_ABSENT,
                              .ttft = TRACE_ABSENT,
                              .has_out = true};
    uint64_t shared = o->prefix_len / block, own = i % (o->prefixes ? o->prefixes : 1);
    r.in = o->prefix_len + length_of(o->in, o->range, rng_at(o->seed, STREAM_IN, i));
    r.out = length_of(o->out, o->range, rng_at(o->seed, STREAM_OUT, i));
    r.n_blocks = (uint32_t)((r.in + block - 1) / block);
    for (uint64_t k = 0; k < r.n_blocks; k++)
        numbers->id[k] = k < shared ? own * shared + k : numbers->next++;
    char name[32];
    snprintf(name, sizeof name, "random-%" PRIu32, i);
    struct trace_session *session;
    weir_status s = builder_loose_session(b, name, &session);
    if (s)
        return s;
    session->block_tokens = block;
    session->space = builder_space(b, true);
    r.session = (uint32_t)(session - b->t.sessions);
    return builder_request(b, &r, &(struct builder_extra){.ids = numbers->id});
}

weir_status trace_random(const struct trace_random *o, struct trace *out, weir_error *err) {
    struct builder b;
    *out = (struct trace){0};
    weir_status s = check(o, err);
    if (s)
        return s;
    builder_open(&b, TRACE_RANDOM, NULL, err);
    s = builder_file(&b, "random");
    uint32_t block = block_for(o->prefix_len);
    uint64_t prefixes = o->prefixes ? o->prefixes : 1;
    struct numbers n = {.room = (o->prefix_len + 2 * o->in + 2) / block + 2,
                        .next = prefixes * (o->prefix_len / block)};
    n.id = malloc(n.room * sizeof *n.id);
    if (!n.id)
        s = builder_no_memory(&b);
    for (uint32_t i = 0; !s && i < o->requests; i++)
        s = add_request(&b, o, i, block, &n);
    free(n.id);
    return builder_finish(&b, s, out);
}
