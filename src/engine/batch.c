/* batch.c: lays a decided step out as the arrays of ops.h. Called by the engine thread between
 * scheduling and submit.
 * Invariant that bites: single rows come first and in order, because decode operations address row
 * i of the step buffers by sequence i. */
#include "engine/batch.h"

#include "engine/executor.h"

#include <stdlib.h>

bool step_open(struct step *s, uint32_t max_seqs, uint32_t max_rows, uint32_t max_logits) {
    *s = (struct step){0};
    s->entries = calloc(max_seqs, sizeof *s->entries);
    s->ids = calloc(max_rows, sizeof *s->ids);
    s->seqs = calloc(max_seqs, sizeof *s->seqs);
    s->logits = calloc(max_logits, sizeof *s->logits);
    s->owners = calloc(max_logits, sizeof *s->owners);
    /* Each entry crosses at most rows / 64 + 1 boundaries. */
    s->checkpoints = calloc((size_t)max_rows / PAGE_TOKENS + max_seqs, sizeof *s->checkpoints);
    return s->entries && s->ids && s->seqs && s->logits && s->owners && s->checkpoints;
}

void step_close(struct step *s) {
    free(s->entries);
    free(s->ids);
    free(s->seqs);
    free(s->logits);
    free(s->owners);
    free(s->checkpoints);
}

uint32_t step_scores(const struct weir_request *r, uint32_t from, uint32_t rows) {
    if (r->ask.prompt_top < 0)
        return 0;
    /* Row p tells the chance of token p + 1. */
    uint32_t first = from + 1 > r->run.scored_to ? from + 1 : r->run.scored_to;
    uint32_t end = from + rows + 1 < r->ask.n_prompt ? from + rows + 1 : r->ask.n_prompt;
    return end > first ? end - first : 0;
}

static void add_logits(struct step *s, uint32_t row, struct weir_request *r, uint32_t target) {
    struct batch *b = &s->batch;
    s->owners[b->n_logits] = (struct logits_owner){r, target};
    s->logits[b->n_logits++] =
        target ? (struct batch_logits){.row = row,
                                       .target = r->tokens[target],
                                       .n_top = r->ask.prompt_top}
               : (struct batch_logits){.row = row, .state = &r->sample, .n_top = r->ask.n_top};
}

static void add_entry(struct step *s, struct step_entry *e) {
    struct batch *b = &s->batch;
    struct weir_request *r = e->request;
    struct request_run *run = &r->run;
    uint32_t row0 = b->n_rows, from = run->computed;
    uint32_t on_hand = r->ask.n_prompt + run->n_output; /* tokens whose ids are known by now */
    for (uint32_t i = 0; i < e->rows; i++) {
        if (from + i < on_hand) {
            s->ids[row0 + i] = r->tokens[from + i];
        } else {
            WEIR_ASSERT(run->drawing == 1 && run->draw_step + 1 == s->number);
            s->ids[row0 + i] = ID_FROM_PREVIOUS + (int32_t)run->draw_row;
        }
    }
    s->seqs[b->n_seqs++] = (struct batch_seq){
        .row0 = row0,
        .rows = e->rows,
        .pos0 = from,
        .kept = run->lease.kept,
        .pages = run->lease.pages,
        .slot = run->lease.slot,
        .from = run->lease.from,
        .n_checkpoints = e->n_checkpoints,
        .checkpoints = e->checkpoints,
    };
    run->lease.from = run->lease.slot;
    b->n_rows += e->rows;
    run->computed = e->end = from + e->rows;
    run->in_flight++;
    for (uint32_t i = 0; i < e->n_scores; i++) {
        uint32_t target = run->scored_to++;
        add_logits(s, row0 + (target - 1 - from), r, target);
    }
    if (e->draws) {
        run->draw_step = s->number;
        run->draw_row = b->n_logits;
        run->drawing++;
        add_logits(s, row0 + e->rows - 1, r, 0);
    }
}

void step_build(struct step *s, uint64_t number) {
    s->number = number;
    s->batch = (struct batch){.ids = s->ids, .seqs = s->seqs, .logits = s->logits};
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].rows == 1)
            add_entry(s, &s->entries[i]);
    s->batch.n_decode = s->batch.n_seqs;
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].rows > 1)
            add_entry(s, &s->entries[i]);
    s->n_rows = s->batch.n_rows;
}
