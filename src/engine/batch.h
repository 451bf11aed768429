/* batch.h: one step in flight: what the scheduler decided, the batch that says it to the executor,
 * and whose each logits row is. */
#ifndef WEIR_ENGINE_BATCH_H
#define WEIR_ENGINE_BATCH_H

#include "engine/request.h"

/* The next `rows` known tokens of one request. */
struct step_entry {
    struct weir_request *request;
    uint32_t rows;
    uint32_t n_scores; /* of the last rows' prompt successors, how many are scored */
    bool draws;        /* the last row is the last known token: the next one is drawn from it */
    uint32_t n_checkpoints;
    const struct batch_checkpoint *checkpoints; /* states this step leaves */
    uint32_t end; /* tokens the sequence has computed after this step; filled by step_build */
};

/* Whose logits row it is, and what for. */
struct logits_owner {
    struct weir_request *request;
    uint32_t target; /* prompt position that is scored; 0: a draw */
};

struct step {
    uint64_t number;
    uint32_t n_entries, n_rows;
    struct step_entry *entries; /* [limit of sequences] */
    struct batch batch;
    int32_t *ids;
    struct batch_seq *seqs;
    struct batch_logits *logits;
    struct logits_owner *owners;
    uint32_t n_checkpoints;
    struct batch_checkpoint *checkpoints;
};

/* Room for steps of the largest kind; false without memory. */
bool step_open(struct step *s, uint32_t max_seqs, uint32_t max_rows, uint32_t max_logits);
void step_close(struct step *s);

/* Turns entries into a batch and books the rows as given away: computed, drawing, in_flight and
 * scored_to of every request move on. `number` counts steps: an id whose draw is still in flight is
 * named by its row in step number - 1. */
void step_build(struct step *s, uint64_t number);

/* How many rows in [from, from + rows) have a prompt successor yet to be scored. */
uint32_t step_scores(const struct weir_request *r, uint32_t from, uint32_t rows);

#endif
