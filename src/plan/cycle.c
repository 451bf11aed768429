/* cycle.c: the model of a draft cycle. Called by plans and the simulator. */
#include "plan/cycle.h"

double cycle_ms(const struct cycle_model *m, uint32_t drafts) {
    return m->base_ms + m->row_ms * (drafts + 1);
}

double cycle_tpot_ms(const struct cycle_model *m, const struct acceptance_curve *c,
                     uint32_t drafts) {
    return cycle_ms(m, drafts) / c->length[drafts];
}

uint32_t cycle_best_drafts(const struct cycle_model *m, const struct acceptance_curve *c,
                           uint32_t most) {
    uint32_t best = 0;
    for (uint32_t k = 1; k <= most && k <= ACCEPTANCE_MOST; k++)
        if (cycle_tpot_ms(m, c, k) < cycle_tpot_ms(m, c, best))
            best = k;
    return best;
}

double cycle_budget(const struct acceptance_curve *c, uint32_t k, uint32_t more) {
    return c->length[more] / c->length[k] - 1;
}

bool cycle_pays(const struct acceptance_curve *c, uint32_t k, double k_ms, uint32_t more,
                double more_ms) {
    return more_ms / k_ms < c->length[more] / c->length[k];
}

bool cycle_fit(const struct acceptance_curve *c, const uint32_t *drafts, const double *tpot_ms,
               size_t n, struct cycle_model *out) {
    double x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        double rows = drafts[i] + 1, ms = tpot_ms[i] * c->length[drafts[i]];
        x += rows;
        y += ms;
        xx += rows * rows;
        xy += rows * ms;
    }
    double spread = (double)n * xx - x * x;
    if (n < 2 || !(spread > 0))
        return false;
    out->row_ms = ((double)n * xy - x * y) / spread;
    out->base_ms = (y - out->row_ms * x) / (double)n;
    return true;
}
