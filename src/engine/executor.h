/* executor.h: the seam between deciding and computing. The scheduler hands over batches and
 * collects drawn tokens; behind the seam a step program runs on this machine, or nothing runs at
 * all. Up to EXECUTOR_DEPTH batches are in flight, done in order; the second may name ids that the
 * first has yet to draw (ID_FROM_PREVIOUS). Scheduler, caches and metrics are the same code over
 * every executor. */
#ifndef WEIR_ENGINE_EXECUTOR_H
#define WEIR_ENGINE_EXECUTOR_H

#include "cache/store.h"
#include "forward/program.h"

enum { EXECUTOR_DEPTH = 2 };

struct step_outcome {
    uint32_t n_results;
    const struct sample_result *results; /* one per batch_logits; valid until the next collect */
    double seconds;                      /* time the step took */
};

/* submit: takes a batch; its arrays stay untouched until it was collected. At most EXECUTOR_DEPTH
 * uncollected ones. collect: waits for the oldest and returns its outcome. idle_wait: none. */
struct executor {
    void (*submit)(struct executor *x, const struct batch *b);
    void (*collect)(struct executor *x, struct step_outcome *out);
    void (*close)(struct executor *x);
};

/* Steps run on a thread of their own with a team of `threads`. Takes over `program`, not `store`.
 */
weir_status executor_open_program(struct step_program *program, struct cache_store *store,
                                  uint32_t threads, uint32_t max_logits, struct executor **out,
                                  weir_error *err);

/* Nothing is computed. A row whose sample_state has a script answers with the script's next id; one
 * without answers with a hash of (previous ids' count, seed) below `vocab`. Same scheduler, same
 * caches, no cost. */
struct null_script {
    const int32_t *ids;
    uint32_t n;
};
weir_status executor_open_null(uint32_t vocab, uint32_t max_logits, struct executor **out,
                               weir_error *err);

#endif
