/* replay.h: a trace through the real scheduler and cache at full length, with nothing computed: the
 * null executor answers at once, so a run takes seconds and says what a policy and a pair of pools
 * would have found.
 *
 * Requests start in the order of their recorded times, each when those its chain names before it
 * have ended (a sub-agent after the turn that spawned it, the next turn after its sub-agents), at
 * most `concurrency` at once. All calls into the engine come from its own thread between steps, so
 * that a run is the same every time. */
#ifndef WEIR_TESTS_TRACE_REPLAY_H
#define WEIR_TESTS_TRACE_REPLAY_H

#include "cache/policy.h"
#include "trace/trace.h"

struct replay_setup {
    const struct trace *trace;
    const uint32_t *order; /* trace_by_time */
    uint32_t pages, slots;
    struct checkpoint_policy policy;
    uint32_t concurrency, step_rows;
    /* The recorded answer is what the next turn repeats: where the next prompt of the chain goes on
     * from this one, answer with its tokens, and end this prompt with them. Without, the tail of a
     * prompt and its answer are nobody's prefix, as in the counts of a trace. */
    bool recorded_answers;
};

struct replay_result {
    weir_stats end;
    uint64_t prompt_tokens, cached_tokens;
    uint32_t most_states; /* checkpoints held at once */
    double seconds;
};

/* Pages and slots that no run of the trace can fill. */
uint32_t replay_ample(const struct trace *t, uint32_t concurrency);
/* Tokens of the longest request with its answer. */
uint32_t replay_longest(const struct trace *t);

/* Ends the program where the engine refuses anything. `cached` (may be NULL): for each request the
 * tokens it did not have to compute. */
void replay_run(const struct replay_setup *setup, struct replay_result *out, uint32_t *cached);

#endif
