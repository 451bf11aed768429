/* cycle.h: what drafts are worth: a cycle of drafting and verifying takes longer with each draft,
 * and commits more tokens. Times in milliseconds. */
#ifndef WEIR_PLAN_CYCLE_H
#define WEIR_PLAN_CYCLE_H

#include "trace/acceptance.h"

#include <stdbool.h>

/* A cycle with k drafts verifies k + 1 rows. */
struct cycle_model {
    double base_ms, row_ms;
};
double cycle_ms(const struct cycle_model *m, uint32_t drafts);
/* Time of one token of one sequence. */
double cycle_tpot_ms(const struct cycle_model *m, const struct acceptance_curve *c,
                     uint32_t drafts);
/* The number of drafts, at most `most`, with the least time for a token; the lesser of equals. */
uint32_t cycle_best_drafts(const struct cycle_model *m, const struct acceptance_curve *c,
                           uint32_t most);

/* By how much a cycle may lengthen from k to `more` drafts before they do not pay: 0.12 is 12 %. */
double cycle_budget(const struct acceptance_curve *c, uint32_t k, uint32_t more);
bool cycle_pays(const struct acceptance_curve *c, uint32_t k, double k_ms, uint32_t more,
                double more_ms);

/* The model through measured times of a token (tpot_ms[i] at drafts[i]), least squares of cycle
 * times. Needs two different numbers of drafts. */
bool cycle_fit(const struct acceptance_curve *c, const uint32_t *drafts, const double *tpot_ms,
               size_t n, struct cycle_model *out);

#endif
