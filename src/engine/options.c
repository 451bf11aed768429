/* options.c: weir_options and weir_params as they start, and how large an engine becomes. Called by
 * weir_open before anything is allocated, so that what cannot work is refused with its numbers and
 * not found out by the first long prompt. */
#include "engine/options.h"

#include "base/cpu.h"
#include "base/log.h"
#include "base/plural.h"
#include "ops/ops.h"

#include <string.h>

enum {
    DEFAULT_SEQS = 64,
    DEFAULT_ROWS = 512, /* eight chunks: long enough to feed the matrices, short enough for others
                           to get their turn */
    DEFAULT_QUEUE = 4096,
    MOST_THREADS = 1024,
    MOST_SEQS = 65536,
    MOST_ROWS = 1 << 20,
    MOST_QUEUE = 1 << 24,
    SHORTEST_CONTEXT = 2,
    MOST_CHECKPOINTS = 1 << 20,
    CHECKPOINTS_A_SEQ = 4,
};

weir_options weir_options_default(void) {
    return (weir_options){
        .compute = WEIR_COMPUTE_FAST,
        .policy = WEIR_FCFS,
        .async_scheduling = true,
        .prefix_caching = true,
    };
}

weir_params weir_params_default(void) {
    return (weir_params){
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

static weir_status choose(const char *name, uint32_t asked, uint32_t otherwise, uint32_t most,
                          uint32_t *out, weir_error *err) {
    *out = asked ? asked : otherwise;
    if (*out <= most)
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_VALUE, name, "is %" PRIu32 ", must be at most %" PRIu32, *out,
                     most);
}

static uint64_t pages_for(uint64_t tokens) {
    return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t context_bytes(const struct unit_sizes *unit, const struct engine_sizes *s) {
    return times(pages_for(s->max_model_len), unit->page_bytes);
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static bool keeps_states(const weir_options *o) {
    return o->prefix_caching && !(o->checkpoint_policy && !strcmp(o->checkpoint_policy, "none"));
}

/* How many sequences run at once: as asked, else as many as half of the budget holds states for and
 * as leave room for one whole context and, with reuse, for a kept state each. */
static void plan_seqs(const weir_options *o, const struct unit_sizes *unit, uint64_t budget,
                      struct engine_sizes *s) {
    if (!o->max_num_seqs && unit->slot_bytes) {
        bool keeps_one_each = keeps_states(o) && !o->max_checkpoints;
        uint64_t kept = o->prefix_caching ? times(o->max_checkpoints, unit->slot_bytes) : 0;
        uint64_t room = less(less(budget, context_bytes(unit, s)), kept);
        uint64_t hold = least(budget / 2 / unit->slot_bytes,
                              room / times(unit->slot_bytes, keeps_one_each ? 2 : 1));
        s->max_num_seqs = (uint32_t)least(s->max_num_seqs, hold ? hold : 1);
    }
    s->slots = s->max_num_seqs;
}

/* Slots for states that are kept: as asked, else what half of the room beside the live states and
 * one whole context holds, where no size was given at most CHECKPOINTS_A_SEQ for each sequence.
 * What plan_seqs left room for is there, and where the context has to be cut anyway, one. */
static uint64_t plan_checkpoints(const weir_options *o, const struct unit_sizes *unit,
                                 uint64_t budget, const struct engine_sizes *s) {
    if (!o->prefix_caching || !unit->slot_bytes)
        return 0;
    if (o->max_checkpoints)
        return o->max_checkpoints;
    if (!keeps_states(o))
        return 0;
    uint64_t context = context_bytes(unit, s);
    uint64_t room = less(budget, times(s->slots, unit->slot_bytes));
    if (room < context)
        return !o->max_num_seqs && !o->max_model_len && budget / 4 >= unit->slot_bytes;
    uint64_t slots = (room - context) / unit->slot_bytes, hold = slots / 2;
    if (!o->max_num_seqs && hold < s->max_num_seqs)
        hold = least(slots, s->max_num_seqs);
    uint64_t most =
        o->kv_cache_bytes ? MOST_CHECKPOINTS : times(s->max_num_seqs, CHECKPOINTS_A_SEQ);
    return least(hold, most);
}

/* A context that had to be cut: says beside what, and what would change it. */
static void warn_shortened(const weir_options *o, const struct unit_sizes *unit, uint64_t budget,
                           const struct engine_sizes *s, uint32_t wanted) {
    uint64_t need = times(s->slots, unit->slot_bytes);
    need += times(pages_for(wanted), unit->page_bytes ? unit->page_bytes : 1);
    uint32_t kept = s->slots - s->max_num_seqs;
    bool lower = (o->max_num_seqs && s->max_num_seqs > 1) || (o->max_checkpoints && kept > 1);
    log_line(LOG_WARN,
             "context shortened to %" PRIu32 " tokens: beside states for max_num_seqs %" PRIu32
             " and max_checkpoints %" PRIu32 ", %zu bytes each, kv_cache_bytes %" PRIu64
             "%s hold no more; all %" PRIu32 " tokens need %" PRIu64 "%s",
             s->max_model_len, s->max_num_seqs, kept, unit->slot_bytes, budget,
             o->kv_cache_bytes ? "" : " (half of the memory there is)", wanted, need,
             lower ? "; lower max_num_seqs or max_checkpoints for more" : "");
}

static weir_status plan_pools(const weir_options *o, const struct unit_sizes *unit,
                              uint64_t memory_bytes, uint64_t host_bytes, struct engine_sizes *s,
                              weir_error *err) {
    if (o->kv_cache_bytes > memory_bytes)
        return weir_fail(err, WEIR_BAD_VALUE, "kv_cache_bytes",
                         "is %" PRIu64 ", more than the %" PRIu64 " bytes of this machine",
                         o->kv_cache_bytes, memory_bytes);
    if (o->cpu_offload_bytes > host_bytes)
        return weir_fail(err, WEIR_BAD_VALUE, "cpu_offload_bytes",
                         "is %" PRIu64 ", more than the %" PRIu64 " bytes of this machine",
                         o->cpu_offload_bytes, host_bytes);
    if (o->expert_cache_bytes > host_bytes)
        return weir_fail(err, WEIR_BAD_VALUE, "expert_cache_bytes",
                         "is %" PRIu64 ", more than the %" PRIu64 " bytes of this machine",
                         o->expert_cache_bytes, host_bytes);
    uint64_t budget = o->kv_cache_bytes ? o->kv_cache_bytes : memory_bytes / 2;
    const char *of = o->kv_cache_bytes ? "" : " (half of the memory there is)";
    plan_seqs(o, unit, budget, s);
    s->slots += (uint32_t)plan_checkpoints(o, unit, budget, s);
    uint64_t slots = times(s->slots, unit->slot_bytes);
    uint64_t page = unit->page_bytes ? unit->page_bytes : 1;
    if (budget < slots || budget - slots < page)
        return weir_fail(
            err, WEIR_BAD_VALUE, "kv_cache_bytes",
            "is %" PRIu64 "%s, but %" PRIu32 " state %s of %zu bytes "
            "(max_num_seqs and max_checkpoints) and one page of %zu bytes take %" PRIu64,
            budget, of, s->slots, plural(s->slots, "slot", "slots"), unit->slot_bytes,
            unit->page_bytes, slots + page);
    uint64_t pages = (budget - slots) / page, one = pages_for(s->max_model_len);
    if (pages < one && o->max_model_len)
        return weir_fail(err, WEIR_BAD_VALUE, "kv_cache_bytes",
                         "is %" PRIu64 "%s: beside %" PRIu32 " state %s of %zu bytes it holds "
                         "%" PRIu64 " %s of %zu bytes, which is %" PRIu64
                         " tokens; max_model_len %" PRIu32 " needs %" PRIu64 " bytes in all",
                         budget, of, s->slots, plural(s->slots, "slot", "slots"), unit->slot_bytes,
                         pages, plural(pages, "page", "pages"), unit->page_bytes,
                         pages * PAGE_TOKENS, s->max_model_len, slots + times(one, page));
    if (pages < one) {
        uint32_t wanted = s->max_model_len;
        s->max_model_len = (uint32_t)(pages * PAGE_TOKENS);
        warn_shortened(o, unit, budget, s, wanted);
    }
    /* Without reuse more than every sequence at full length needs is never used; without a size
     * given, a quarter of that. Ids are 31 bits. */
    uint64_t most =
        o->prefix_caching ? INT32_MAX : times(s->max_num_seqs, pages_for(s->max_model_len));
    if (!o->kv_cache_bytes) {
        uint64_t wish = times(s->max_num_seqs, pages_for(s->max_model_len / 4));
        most = wish > one ? wish : one;
    }
    s->pages = (uint32_t)least(pages, least(most, INT32_MAX));
    return WEIR_OK;
}

weir_status engine_sizes_plan(const weir_options *o, const struct unit_sizes *unit,
                              uint64_t memory_bytes, uint64_t host_bytes, struct engine_sizes *out,
                              weir_error *err) {
    struct engine_sizes s = {0};
    weir_status st = choose("threads", o->threads, cpu_count(), MOST_THREADS, &s.threads, err);
    if (!st)
        st = choose("max_num_seqs", o->max_num_seqs, DEFAULT_SEQS, MOST_SEQS, &s.max_num_seqs, err);
    if (!st)
        st = choose("max_num_batched_tokens", o->max_num_batched_tokens, DEFAULT_ROWS, MOST_ROWS,
                    &s.max_num_batched_tokens, err);
    if (!st)
        st = choose("max_queue", o->max_queue, DEFAULT_QUEUE, MOST_QUEUE, &s.max_queue, err);
    if (!st && o->max_checkpoints > MOST_CHECKPOINTS)
        st = weir_fail(err, WEIR_BAD_VALUE, "max_checkpoints", "is %" PRIu32 ", must be at most %d",
                       o->max_checkpoints, MOST_CHECKPOINTS);
    if (st)
        return st;
    s.max_model_len = o->max_model_len ? o->max_model_len : unit->max_position;
    if (s.max_model_len > unit->max_position)
        return weir_fail(err, WEIR_BAD_VALUE, "max_model_len",
                         "is %" PRIu32 ", above the model's max_position_embeddings %" PRIu32,
                         s.max_model_len, unit->max_position);
    if (s.max_model_len < SHORTEST_CONTEXT)
        return weir_fail(err, WEIR_BAD_VALUE, "max_model_len",
                         "is %" PRIu32
                         ", must be at least %d: one token of prompt and one of answer",
                         s.max_model_len, SHORTEST_CONTEXT);
    st = plan_pools(o, unit, memory_bytes, host_bytes, &s, err);
    if (!st)
        *out = s;
    return st;
}
