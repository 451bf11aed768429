/* metrics_cache.c: the prefix cache in the Prometheus text: where prompt tokens came from, which
 * states were kept and used, what the pools hold, what the tiers below them move. Called by
 * metrics_text.c with one snapshot, so that sums over labels agree with the totals beside them. A
 * tier that is not open has no series: a 0 would read as one that is empty or down. */
#include "serve/metrics_inside.h"

#include <stdarg.h>

/* The tiers that are open, fastest first. */
struct open_tiers {
    uint32_t n;
    struct {
        const char *name;
        const weir_tier_stats *stats;
    } tier[WEIR_SOURCES];
};

static struct open_tiers find_open(const weir_stats *s) {
    struct open_tiers open = {0};
    for (int i = WEIR_HOST; i < WEIR_SOURCES; i++) {
        if (!s->tier[i].open)
            continue;
        open.tier[open.n].name = weir_source_name((enum weir_source)i);
        open.tier[open.n++].stats = &s->tier[i];
    }
    return open;
}

/* One line. After the value come label names and values, closed by NULL; values are names of our
 * own and need no escaping. */
static void sample(FILE *out, const struct metrics *m, const char *name, double value, ...) {
    va_list labels;
    fprintf(out, "%s{%s", name, m->labels);
    va_start(labels, value);
    for (const char *label = va_arg(labels, const char *); label;
         label = va_arg(labels, const char *))
        fprintf(out, ",%s=\"%s\"", label, va_arg(labels, const char *));
    va_end(labels);
    fprintf(out, "} %.17g\n", value);
}

static void counter(FILE *out, const struct metrics *m, const char *name, const char *help,
                    uint64_t value) {
    metrics_family(out, name, "counter", help);
    sample(out, m, name, (double)value, NULL);
}

static void gauge(FILE *out, const struct metrics *m, const char *name, const char *help,
                  uint64_t value) {
    metrics_family(out, name, "gauge", help);
    sample(out, m, name, (double)value, NULL);
}

static uint64_t left(uint64_t whole, uint64_t part) {
    return whole > part ? whole - part : 0;
}

static void write_tokens(FILE *out, const struct metrics *m, const weir_stats *s) {
    const char *name = "weir_prompt_tokens_by_source_total";
    metrics_family(out, name, "counter",
                   "Prompt tokens at first admission, by where the state was that they resumed "
                   "from: in the device pools, in a tier, or computed because none came.");
    for (int i = 0; i < WEIR_SOURCES; i++)
        if (i == WEIR_DEVICE || s->tier[i].open)
            sample(out, m, name, (double)s->sourced_tokens[i], "source",
                   weir_source_name((enum weir_source)i), NULL);
    sample(out, m, name, (double)left(s->queried_tokens, s->cached_tokens), "source", "computed",
           NULL);
    counter(out, m, "weir_stateless_tokens_total",
            "Of the computed prompt tokens, those whose history is kept, on the device or in a "
            "tier, but no state to resume from.",
            s->stateless_tokens);
    counter(out, m, "weir_prefix_waits_total",
            "Requests that waited for a running one to leave the state they share.",
            s->shared_waits);
    counter(out, m, "weir_state_mismatches_total",
            "States refused because their slot held another prefix; more than 0 is a fault.",
            s->tag_mismatches);
}

static void write_reasons(FILE *out, const struct metrics *m, const char *name, const char *help,
                          const uint64_t counts[WEIR_CHECKPOINT_REASONS]) {
    metrics_family(out, name, "counter", help);
    for (int i = 0; i < WEIR_CHECKPOINT_REASONS; i++)
        sample(out, m, name, (double)counts[i], "reason", weir_checkpoint_reason(i), NULL);
}

static void write_states(FILE *out, const struct metrics *m, const weir_stats *s) {
    write_reasons(out, m, "weir_checkpoints_stored_total",
                  "KDA states kept, by why they were kept.", s->checkpoints_stored);
    write_reasons(out, m, "weir_checkpoints_resumed_total",
                  "Requests that resumed from a kept state, by why it had been kept.",
                  s->checkpoints_resumed);
    counter(out, m, "weir_checkpoints_unplaced_total",
            "States that were wanted and not kept: every slot was in use or held one that is "
            "worth more.",
            s->checkpoints_unplaced);
}

static void write_pools(FILE *out, const struct metrics *m, const weir_stats *s) {
    gauge(out, m, "weir_kv_pages_used", "MLA pages of running sequences.", s->pages_used);
    gauge(out, m, "weir_kv_pages_cached", "MLA pages of idle content that may be reused.",
          s->pages_cached);
    gauge(out, m, "weir_kv_pages_free", "MLA pages that hold nothing.",
          left(s->pages_total, s->pages_used + s->pages_cached));
    gauge(out, m, "weir_kv_pages", "MLA pages.", s->pages_total);
    gauge(out, m, "weir_state_slots_used", "KDA state slots of running sequences.", s->slots_used);
    gauge(out, m, "weir_state_slots_cached", "KDA state slots of idle states that may be reused.",
          s->slots_cached);
    gauge(out, m, "weir_state_slots_free", "KDA state slots that hold nothing.",
          left(s->slots_total, s->slots_used + s->slots_cached));
    gauge(out, m, "weir_state_slots", "KDA state slots.", s->slots_total);
    const char *name = "weir_cache_evictions_total";
    metrics_family(out, name, "counter", "Idle pages and states given up for new ones.");
    sample(out, m, name, (double)s->pages_evicted, "kind", "page", NULL);
    sample(out, m, name, (double)s->states_evicted, "kind", "state", NULL);
}

static void write_contents(FILE *out, const struct metrics *m, const struct open_tiers *open) {
    const char *name = "weir_tier_up";
    metrics_family(out, name, "gauge", "1 when the tier answers loads, 0 while it is off.");
    for (uint32_t i = 0; i < open->n; i++)
        sample(out, m, name, open->tier[i].stats->up, "tier", open->tier[i].name, NULL);
    name = "weir_tier_takes_stores";
    metrics_family(out, name, "gauge",
                   "1 when the tier takes new records, 0 while it is off, full or cannot write.");
    for (uint32_t i = 0; i < open->n; i++)
        sample(out, m, name, open->tier[i].stats->takes_stores, "tier", open->tier[i].name, NULL);
    name = "weir_tier_used_bytes";
    metrics_family(out, name, "gauge", "Bytes of the records that the tier is known to hold.");
    for (uint32_t i = 0; i < open->n; i++)
        sample(out, m, name, (double)open->tier[i].stats->bytes_used, "tier", open->tier[i].name,
               NULL);
    name = "weir_tier_limit_bytes";
    metrics_family(out, name, "gauge", "Bytes that the tier may hold; no series: it does not say.");
    for (uint32_t i = 0; i < open->n; i++)
        if (open->tier[i].stats->bytes_total > 0)
            sample(out, m, name, (double)open->tier[i].stats->bytes_total, "tier",
                   open->tier[i].name, NULL);
    name = "weir_tier_records";
    metrics_family(out, name, "gauge", "Pages and states that the tier is known to hold.");
    for (uint32_t i = 0; i < open->n; i++) {
        const weir_tier_stats *t = open->tier[i].stats;
        sample(out, m, name, (double)t->pages, "tier", open->tier[i].name, "kind", "page", NULL);
        sample(out, m, name, (double)t->states, "tier", open->tier[i].name, "kind", "state", NULL);
    }
    name = "weir_tier_evictions_total";
    metrics_family(out, name, "counter", "Pages and states that the tier gave up for new ones.");
    for (uint32_t i = 0; i < open->n; i++) {
        const weir_tier_stats *t = open->tier[i].stats;
        sample(out, m, name, (double)t->pages_evicted, "tier", open->tier[i].name, "kind", "page",
               NULL);
        sample(out, m, name, (double)t->states_evicted, "tier", open->tier[i].name, "kind", "state",
               NULL);
    }
    name = "weir_tier_damaged_records_total";
    metrics_family(out, name, "counter", "Records dropped because their bytes were wrong.");
    for (uint32_t i = 0; i < open->n; i++)
        sample(out, m, name, (double)open->tier[i].stats->damaged, "tier", open->tier[i].name,
               NULL);
}

static void write_moves(FILE *out, const struct metrics *m, const struct open_tiers *open) {
    const char *name = "weir_tier_moves_total";
    metrics_family(out, name, "counter",
                   "Moves between the device pools and the tier that have ended, by how.");
    for (uint32_t i = 0; i < open->n; i++)
        for (int load = 1; load >= 0; load--) {
            const weir_tier_stats *t = open->tier[i].stats;
            const uint64_t *counts = load ? t->loads : t->stores;
            for (int k = 0; k < WEIR_MOVE_RESULTS; k++)
                sample(out, m, name, (double)counts[k], "tier", open->tier[i].name, "task",
                       load ? "load" : "store", "result", weir_move_result(k), NULL);
        }
    name = "weir_tier_moved_bytes_total";
    metrics_family(out, name, "counter", "Bytes moved between the device pools and the tier.");
    for (uint32_t i = 0; i < open->n; i++) {
        const weir_tier_stats *t = open->tier[i].stats;
        sample(out, m, name, (double)t->loaded_bytes, "tier", open->tier[i].name, "task", "load",
               NULL);
        sample(out, m, name, (double)t->stored_bytes, "tier", open->tier[i].name, "task", "store",
               NULL);
    }
    name = "weir_tier_move_seconds_total";
    metrics_family(out, name, "counter",
                   "Time of the moves from being asked for to their end, summed; moves overlap.");
    for (uint32_t i = 0; i < open->n; i++) {
        const weir_tier_stats *t = open->tier[i].stats;
        sample(out, m, name, t->load_seconds, "tier", open->tier[i].name, "task", "load", NULL);
        sample(out, m, name, t->store_seconds, "tier", open->tier[i].name, "task", "store", NULL);
    }
}

void metrics_cache_write(FILE *out, const struct metrics *m, const weir_stats *s) {
    const struct open_tiers open = find_open(s);
    write_tokens(out, m, s);
    write_states(out, m, s);
    write_pools(out, m, s);
    if (open.n == 0)
        return;
    write_contents(out, m, &open);
    write_moves(out, m, &open);
}
