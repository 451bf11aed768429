/* stats.c: collects the figures of scheduler, index and tiers. Called by the engine thread before
 * it publishes; what only outcomes know is counted where it happens. */
#include "engine/engine.h"

_Static_assert((int)CHECKPOINT_REASONS == WEIR_CHECKPOINT_REASONS, "one name for each reason");
_Static_assert((int)TIER_RESULTS == WEIR_MOVE_RESULTS, "one name for each result");
_Static_assert((int)TIER_HOST + 1 == WEIR_HOST && (int)TIER_DISK + 1 == WEIR_DISK &&
                   (int)TIER_REMOTE + 1 == WEIR_REMOTE,
               "tiers in one order");

const char *weir_checkpoint_reason(int reason) {
    return checkpoint_reason_name((enum checkpoint_reason)reason);
}

const char *weir_source_name(enum weir_source s) {
    static const char *const names[WEIR_SOURCES] = {"device", "host", "disk", "remote"};
    return names[s];
}

const char *weir_move_result(int result) {
    return tier_result_name((enum tier_result)result);
}

static void count_tier(const struct cache_tier_counts *c, weir_tier_stats *out) {
    *out = (weir_tier_stats){
        .open = true,
        .up = c->usage.up,
        .takes_stores = c->usage.takes,
        .bytes_used = c->usage.bytes_used,
        .bytes_total = c->usage.bytes_total,
        .pages = c->usage.pages,
        .states = c->usage.states,
        .pages_evicted = c->usage.pages_evicted,
        .states_evicted = c->usage.states_evicted,
        .damaged = c->usage.damaged,
        .loaded_bytes = c->loaded_bytes,
        .stored_bytes = c->stored_bytes,
        .load_seconds = c->load_seconds,
        .store_seconds = c->store_seconds,
    };
    for (int i = 0; i < TIER_RESULTS; i++) {
        out->loads[i] = c->loads[i];
        out->stores[i] = c->stores[i];
    }
}

void engine_count(weir_engine *e) {
    const struct scheduler *s = &e->scheduler;
    const struct cache_usage u = cache_get_usage(e->index);
    const struct cache_counts c = cache_get_counts(e->index);
    weir_stats *t = &e->totals;
    t->running = s->n_running;
    t->pages_used = u.pages_used;
    t->pages_total = u.pages_total;
    t->pages_cached = u.pages_cached;
    t->slots_used = u.slots_used;
    t->slots_total = u.slots_total;
    t->slots_cached = u.slots_cached;
    t->preemptions = s->preemptions;
    t->queried_tokens = s->queried_tokens;
    t->cached_tokens = t->sourced_tokens[WEIR_DEVICE] = s->cached_tokens;
    for (int k = 0; k < TIER_KINDS; k++) {
        t->sourced_tokens[k + 1] = s->tier_tokens[k];
        t->sourced_tokens[WEIR_DEVICE] -= s->tier_tokens[k];
    }
    t->stateless_tokens = s->stateless_tokens;
    for (int i = 0; i < CHECKPOINT_REASONS; i++) {
        t->checkpoints_stored[i] = c.stored[i];
        t->checkpoints_resumed[i] = c.resumed[i];
    }
    t->checkpoints_unplaced = c.unplaced;
    t->pages_evicted = c.pages_evicted;
    t->states_evicted = c.states_evicted;
    t->shared_waits = c.waits;
    t->tag_mismatches = c.tag_mismatches;
    if (e->setup.count)
        e->setup.count(e->setup.close_arg, t);
    struct cache_tier_counts tier[TIER_KINDS];
    uint32_t n = e->tiers ? cache_tiers_counts(e->tiers, tier) : 0;
    for (uint32_t i = 0; i < n; i++)
        count_tier(&tier[i], &t->tier[tier[i].kind + 1]);
}
