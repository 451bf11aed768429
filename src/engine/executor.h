/* executor.h: the seam between deciding and computing. The scheduler hands over batches and
 * collects drawn tokens; behind the seam a step program runs on this machine, or nothing runs at
 * all. Up to EXECUTOR_DEPTH batches are in flight, done in order; the second may name ids that the
 * first has yet to draw (ID_FROM_PREVIOUS). Scheduler, caches and metrics are the same code over
 * every executor. */
#ifndef WEIR_ENGINE_EXECUTOR_H
#define WEIR_ENGINE_EXECUTOR_H

#include "forward/program.h"
#include "machine/place.h"

enum { EXECUTOR_DEPTH = 2 };

/* What one logits row came to: one token where a model draws, more where the executor answers with
 * a fixed text or a draft was accepted. Only the last of them has no history yet in pages and
 * state: after n_tokens the sequence stands n_tokens - 1 positions further than its rows. */
struct step_result {
    uint32_t n_tokens; /* >= 1; a failed row has one, whose status says so */
    const struct sample_result *tokens;
};

struct step_outcome {
    uint32_t n_results;
    const struct step_result *results; /* one per batch_logits; valid until the next submit */
    double seconds;                    /* time the step took */
    const weir_error *failure;         /* nothing of the step counts; NULL: all does */
};

/* submit: takes a batch; it and all it points to stay untouched until it was collected, except page
 * table entries behind the ones it uses. At most EXECUTOR_DEPTH uncollected ones. collect: waits
 * for the oldest and returns its outcome; only with one in flight. close: not before all have been
 * collected. One thread calls all three. */
struct executor {
    void (*submit)(struct executor *x, const struct batch *b);
    void (*collect)(struct executor *x, struct step_outcome *out);
    void (*close)(struct executor *x);
};

/* Steps run on a thread of their own with a team of `threads`, each kept on its node of `place`
 * (NULL: anywhere), which must outlive the executor. Takes over `program` (also on failure). */
weir_status executor_open_program(struct step_program *program, uint32_t threads,
                                  const struct place *place, struct step_limits limits,
                                  struct executor **out, weir_error *err);

/* Nothing is computed: a step ends when it is submitted. A row whose state has a script answers
 * with the script's next ids, as many as the script's next step says; after its end, and without
 * one, with a hash of (seed, stream, tokens so far) below `vocab`. A scored row reports logprob 0.
 * Same scheduler, same caches, no cost. */
weir_status executor_open_null(uint32_t vocab, struct step_limits limits, struct executor **out,
                               weir_error *err);

#endif
