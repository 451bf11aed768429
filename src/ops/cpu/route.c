/* route.c: the choice of experts. Called through the columns of this folder.
 * Invariant that bites: ids index the experts' weights, so they must be valid and different even
 * for a row of NaN: such a row gives NaN weights, and the answer says so, not a wild read. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vmath.h"

#include <math.h>

static void scores(const struct op_route *a, const float *logit, float *score) {
    float top = -INFINITY, total = 0;
    for (uint32_t e = 0; a->softmax && e < a->experts; e++)
        top = logit[e] > top ? logit[e] : top;
    /* The last vector ends beyond the scores, in room of theirs. */
    for (uint32_t e = 0; e < a->experts; e += VL) {
        vf x = vloadm(logit + e, vmask(a->experts - e));
        vstore(score + e, a->softmax ? vexp(x - vset(top)) : vsigmoid(x));
    }
    if (!a->softmax)
        return;
    for (uint32_t e = 0; e < a->experts; e++)
        total += score[e];
    for (uint32_t e = 0; e < a->experts; e++)
        score[e] /= total;
}

/* Puts value v of entry e among the `have` best, of which there are at most k. */
static uint32_t insert(float v, uint32_t e, int32_t *id, float *top, uint32_t have, uint32_t k) {
    uint32_t at = have < k ? have++ : k - 1;
    for (; at > 0 && top[at - 1] < v; at--) {
        top[at] = top[at - 1];
        id[at] = id[at - 1];
    }
    top[at] = v;
    id[at] = (int32_t)e;
    return have;
}

/* The k best of n by falling value, ties to the lower index; NaN counts as -inf. Entries at -inf
 * are taken only when nothing else is left, in order of index. */
static void best(const float *value, uint32_t n, int32_t *id, float *top, uint32_t k) {
    uint32_t have = 0, e = 0;
    for (; have < k && e < n; e++)
        have = insert(value[e] == value[e] ? value[e] : -INFINITY, e, id, top, have, k);
    for (; e < n; e += VL) { /* most are not among the best, and a vector tells so at once */
        uint32_t above = vabove(vloadm(value + e, vmask(n - e)), top[k - 1]);
        if (n - e < VL)
            above &= (1u << (n - e)) - 1;
        for (; above; above &= above - 1) {
            uint32_t i = e + (uint32_t)__builtin_ctz(above);
            if (value[i] > top[k - 1])
                insert(value[i], i, id, top, have, k);
        }
    }
}

/* Masks the experts of all but the best groups; a group counts as the sum of its two best. */
static void keep_groups(const struct op_route *a, float *choice, float *rank, int32_t *kept,
                        float *top) {
    uint32_t size = a->experts / a->groups;
    for (uint32_t g = 0; g < a->groups; g++) {
        float two[2] = {-INFINITY, -INFINITY};
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            float v = choice[e];
            if (v > two[0]) {
                two[1] = two[0];
                two[0] = v;
            } else if (v > two[1]) {
                two[1] = v;
            }
        }
        rank[g] = size > 1 ? two[0] + two[1] : two[0];
    }
    best(rank, a->groups, kept, top, a->top_groups);
    for (uint32_t g = 0; g < a->groups; g++) {
        bool in = false;
        for (uint32_t i = 0; i < a->top_groups; i++)
            in |= kept[i] == (int32_t)g;
        for (uint32_t e = g * size; !in && e < (g + 1) * size; e++)
            choice[e] = -INFINITY;
    }
}

static void route_row(const struct op_route *a, uint32_t r, unsigned char *at) {
    float *score = carve(&at, round_up(a->experts, VL) * sizeof(float));
    float *choice = carve(&at, a->experts * sizeof(float));
    float *rank = carve(&at, a->groups * sizeof(float));
    int32_t *kept = carve(&at, a->groups * sizeof(int32_t));
    float *top = carve(&at, (a->top_k + a->groups) * sizeof(float));
    int32_t *ids = a->ids + (size_t)r * a->top_k;
    float *weights = a->weights + (size_t)r * a->top_k;
    scores(a, tensor_row(a->logits, r), score);
    for (uint32_t e = 0; e < a->experts; e++)
        choice[e] = score[e] + (a->bias ? a->bias[e] : 0);
    if (a->groups > 1 && a->groups > a->top_groups)
        keep_groups(a, choice, rank, kept, top);
    best(choice, a->experts, ids, top, a->top_k);
    float sum = 0;
    for (uint32_t j = 0; j < a->top_k; j++) /* the bias steers the choice only */
        sum += weights[j] = score[ids[j]];
    for (uint32_t j = 0; j < a->top_k; j++)
        weights[j] = (a->renormalize ? weights[j] / (sum + 1e-20f) : weights[j]) * a->scale;
}

void cpu_route(const struct op_route *a, const struct batch *b, struct work work) {
    for (struct span s; work_next(&work, b->n_rows, &s);)
        for (uint32_t r = s.begin; r < s.end; r++)
            route_row(a, r, work.scratch);
}

size_t cpu_route_scratch(const struct op_route *a) {
    return (2 * (size_t)a->experts + VL + 3 * (size_t)a->groups + a->top_k) * sizeof(float) +
           6 * 64;
}
