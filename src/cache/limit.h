/* limit.h: why a prompt resumes where it does and not further on, for people. */
#ifndef WEIR_CACHE_LIMIT_H
#define WEIR_CACHE_LIMIT_H

#include "cache/index.h"

/* What kept a request from resuming further on. */
enum cache_limit_why {
    CACHE_LIMIT_NONE,          /* it resumes as far as it may */
    CACHE_LIMIT_UNFETCHED,     /* the tiers have more, up to `position`, and it did not come */
    CACHE_LIMIT_NO_STATES,     /* history goes on; the policy keeps no states at all, */
    CACHE_LIMIT_STATE,         /* or none was kept there, */
    CACHE_LIMIT_STATE_EVICTED, /* or the one at `position` was, and was given up */
    CACHE_LIMIT_HISTORY,       /* nobody went on like this, as far as is remembered */
    CACHE_LIMIT_HISTORY_EVICTED,
};
struct cache_limit {
    enum cache_limit_why why;
    uint32_t position;
};
/* Of a matched lease whose request may resume at `most` at the furthest. For people: it looks keys
 * up and goes by a memory of what was given up that forgets. */
struct cache_limit cache_limit(const struct cache_index *x, const struct cache_lease *lease,
                               uint32_t most);
bool cache_enabled(const struct cache_index *x);

#endif
