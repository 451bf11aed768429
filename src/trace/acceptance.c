/* acceptance.c: curves and draws of accepted drafts. Called by plans and the simulator. */
#include "trace/acceptance.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

static const struct acceptance_curve curves[] = {
    {"kimi-k3",
     "Kimi K3, its own drafter, probabilistic drafting, block verification",
     {1, 1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00}},
    {"kimi-k3-greedy",
     "Kimi K3, its own drafter, greedy drafting, token by token",
     {1, 1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88}},
    {"kimi-k2.5-thinking",
     "Kimi K2.5, EAGLE3, thinking",
     {1, 1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77}},
    {"kimi-k2.5",
     "Kimi K2.5, EAGLE3, not thinking",
     {1, 1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51}},
};
enum { CURVES = sizeof curves / sizeof *curves };

const struct acceptance_curve *acceptance_curve_at(size_t i) {
    return i < CURVES ? &curves[i] : NULL;
}

weir_status acceptance_curve_find(const char *name, const struct acceptance_curve **out,
                                  weir_error *err) {
    char list[256] = "";
    *out = NULL;
    for (size_t i = 0, n = 0; i < CURVES; i++) {
        if (!strcmp(curves[i].name, name))
            *out = &curves[i];
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", curves[i].name);
    }
    return *out ? WEIR_OK
                : weir_fail(err, WEIR_BAD_VALUE, "acceptance", "'%.80s' is none of %s", name, list);
}

void acceptance_marginals(double length, uint32_t k, double *marginal) {
    double a = fmin(fmax(length - 1, 0), k), whole = floor(a);
    for (uint32_t i = 0; i < k; i++)
        marginal[i] = i < whole ? 1 : i == whole ? a - whole : 0;
}

static double draw(uint64_t seed, uint64_t sequence, uint64_t cycle, uint32_t i) {
    return rng_unit(rng_at(rng_mix(seed) ^ sequence, cycle, i));
}

uint32_t acceptance_draw(const double *marginal, uint32_t k, uint64_t seed, uint64_t sequence,
                         uint64_t cycle) {
    double before = 1;
    for (uint32_t i = 0; i < k; i++) {
        double chance = before > 0 ? marginal[i] / before : 0;
        if (!(draw(seed, sequence, cycle, i) < chance))
            return i;
        before = marginal[i];
    }
    return k;
}

uint32_t acceptance_draw_independent(double length, uint32_t k, uint64_t seed, uint64_t sequence,
                                     uint64_t cycle) {
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < k; i++)
        accepted += draw(seed, sequence, cycle, i) < (length - 1) / k;
    return accepted;
}

uint64_t acceptance_commit(struct acceptance_count *c, uint32_t accepted, uint64_t left) {
    uint64_t all = (uint64_t)accepted + 1, committed = all < left ? all : left;
    c->cycles++;
    c->accepted += accepted;
    c->committed += committed;
    c->discarded += all - committed;
    return committed;
}

double acceptance_length(const struct acceptance_count *c) {
    return c->cycles ? 1 + (double)c->accepted / (double)c->cycles : NAN;
}
