/* cache_log.c: says in words where a prompt resumed. Called by the scheduler when it admits a
 * request. Each sentence names the first thing that kept the request from resuming further on. */
#include "engine/cache_log.h"

#include "cache/limit.h"

#include <stdarg.h>
#include <string.h>

static const char *const place[TIER_KINDS + 1] = {"host", "disk", "remote", "device"};

static void add(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *out, const char *format, ...) {
    size_t n = strlen(out);
    va_list ap;
    va_start(ap, format);
    vsnprintf(out + n, CACHE_LINE_BYTES - n, format, ap);
    va_end(ap);
}

/* Nothing more could have been had. */
static void add_whole(char *out, const struct weir_request *r, uint32_t most) {
    uint32_t known = request_known(r), resume = r->run.lease.resume;
    if (most + 1 < known)
        add(out, "%s is computed because the prompt's log probabilities are wanted",
            resume ? "the rest" : "all");
    else if (known % PAGE_TOKENS == 0)
        add(out, "the last block is computed because its last token must be");
    else if (resume == 0)
        add(out, "the prompt is shorter than a block of %d tokens", PAGE_TOKENS);
    else
        add(out, "the rest is shorter than a block of %d tokens", PAGE_TOKENS);
}

static void add_trouble(char *out, const struct cache_fetched *f) {
    const char *tier = place[f->trouble_in];
    switch (f->trouble) {
    case TIER_GONE: add(out, "what %s had further on was gone when it was loaded", tier); break;
    case TIER_DAMAGED: add(out, "what %s had further on was damaged", tier); break;
    case TIER_FAILED:
        add(out, "its load from %s %s %.1f s", tier, f->late ? "took longer than" : "failed after",
            f->seconds);
        break;
    case TIER_DECLINED: add(out, "%s is off for now and may have more", tier); break;
    case TIER_OK:
    case TIER_RESULTS: break;
    }
}

static void add_why(char *out, const struct cache_index *x, const struct weir_request *r,
                    uint32_t most) {
    const struct cache_lease *lease = &r->run.lease;
    struct cache_limit limit = cache_limit(x, lease, most);
    if (limit.why != CACHE_LIMIT_NONE && r->run.fetched.trouble != TIER_OK) {
        add_trouble(out, &r->run.fetched);
        return;
    }
    switch (limit.why) {
    case CACHE_LIMIT_NONE: add_whole(out, r, most); break;
    case CACHE_LIMIT_UNFETCHED:
        add(out,
            r->run.fetched.position >= limit.position
                ? "what was fetched up to %" PRIu32 " was given up before it could run"
                : "what the tiers have up to %" PRIu32 " was not fetched",
            limit.position);
        break;
    case CACHE_LIMIT_NO_STATES: add(out, "the policy keeps no states"); break;
    case CACHE_LIMIT_STATE: add(out, "no state is kept further on"); break;
    case CACHE_LIMIT_STATE_EVICTED:
        add(out, "the state at %" PRIu32 " was given up", limit.position);
        break;
    case CACHE_LIMIT_HISTORY: add(out, "no prompt known goes on like this one"); break;
    case CACHE_LIMIT_HISTORY_EVICTED: add(out, "the history further on was given up"); break;
    }
}

void cache_line(const struct cache_index *x, const struct weir_request *r, uint32_t most,
                char out[CACHE_LINE_BYTES]) {
    const struct cache_lease *lease = &r->run.lease;
    const struct cache_fetched *f = &r->run.fetched;
    out[0] = 0;
    if (r->name)
        add(out, "cache: request %s: ", r->name);
    else
        add(out, "cache: request %" PRIu64 ": ", r->ask.arrival);
    add(out, "prompt %" PRIu32 ", ", r->ask.n_prompt);
    if (!cache_enabled(x)) {
        add(out, "resumes at 0; prefix caching is off");
        return;
    }
    add(out, "history to %" PRIu32, lease->matched);
    /* Unless some of it was given up again meanwhile. */
    for (int k = 0; k < TIER_KINDS && lease->kept >= f->position; k++)
        if (f->tokens[k])
            add(out, ", %" PRIu32 " of it from %s", f->tokens[k], place[k]);
    add(out, ", resumes at %" PRIu32, lease->resume);
    if (lease->resume)
        add(out, ", state from %s",
            place[f->position == lease->resume ? f->state_from : TIER_KINDS]);
    add(out, "; ");
    add_why(out, x, r, most);
}
