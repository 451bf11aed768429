/* limit.c: looks at what there is beyond the point where a prompt resumes. Called for the log
 * alone. */
#include "cache/limit.h"

#include "cache/index_inside.h"

bool cache_enabled(const struct cache_index *x) {
    return x->setup.enabled;
}

struct cache_limit cache_limit(const struct cache_index *x, const struct cache_lease *lease,
                               uint32_t most) {
    const struct node_table *t = &x->table;
    uint32_t resume = lease->resume / PAGE_TOKENS, matched = lease->matched / PAGE_TOKENS;
    if (resume == most / PAGE_TOKENS)
        return (struct cache_limit){CACHE_LIMIT_NONE, 0};
    if (lease->unfetched)
        return (struct cache_limit){CACHE_LIMIT_UNFETCHED, lease->unfetched};
    for (uint32_t b = matched; b > resume; b--)
        if (evicted_has(&t->gone_states, &lease->keys[b - 1]))
            return (struct cache_limit){CACHE_LIMIT_STATE_EVICTED, b * PAGE_TOKENS};
    if (matched > resume)
        return (struct cache_limit){checkpoint_policy_keeps_states(&x->setup.policy)
                                        ? CACHE_LIMIT_STATE
                                        : CACHE_LIMIT_NO_STATES,
                                    0};
    bool evicted = matched < lease->n_keys && evicted_has(&t->gone_pages, &lease->keys[matched]);
    return (struct cache_limit){evicted ? CACHE_LIMIT_HISTORY_EVICTED : CACHE_LIMIT_HISTORY, 0};
}
