/* acceptance.h: how many drafted tokens a model accepts: published curves, and a draw that keeps
 * their mean exactly. For simulations and for servers that pretend to speculate. Source:
 * docs/bench.md. */
#ifndef WEIR_TRACE_ACCEPTANCE_H
#define WEIR_TRACE_ACCEPTANCE_H

#include "base/error.h"

#include <stdint.h>

enum { ACCEPTANCE_MOST = 8 };

/* length[k]: tokens committed by a cycle with k drafts on average, the one that follows the last
 * accepted draft included; length[0] is 1. */
struct acceptance_curve {
    const char *name, *about;
    double length[ACCEPTANCE_MOST + 1];
};
/* NULL behind the last. */
const struct acceptance_curve *acceptance_curve_at(size_t i);
/* WEIR_BAD_VALUE lists the names. */
weir_status acceptance_curve_find(const char *name, const struct acceptance_curve **out,
                                  weir_error *err);

/* marginal[i]: chance that draft i + 1 and all before it are accepted, least variance: whole ones
 * first, then the rest. 1 <= length <= k + 1; beyond is taken as the border. */
void acceptance_marginals(double length, uint32_t k, double *marginal);
/* Accepted drafts of one cycle: each follows from (seed, sequence, cycle) alone. */
uint32_t acceptance_draw(const double *marginal, uint32_t k, uint64_t seed, uint64_t sequence,
                         uint64_t cycle);
/* The other convention: each draft by itself with rate (length - 1) / k, also behind a rejected
 * one. Its mean is the same only where all accepted ones are counted. */
uint32_t acceptance_draw_independent(double length, uint32_t k, uint64_t seed, uint64_t sequence,
                                     uint64_t cycle);

/* Sums over cycles. */
struct acceptance_count {
    uint64_t cycles, accepted; /* drafts */
    uint64_t committed;        /* tokens of answers */
    uint64_t discarded;        /* accepted, but behind the end of the answer */
};
/* One cycle of a sequence that still lacks `left` tokens (> 0). Returns the committed ones:
 * accepted and one more, at most `left`. */
uint64_t acceptance_commit(struct acceptance_count *c, uint32_t accepted, uint64_t left);
/* 1 + accepted / cycles; NAN without cycles. */
double acceptance_length(const struct acceptance_count *c);

#endif
