/* tune_device.c: see tune_inside.h. Called by tune.c for a phase whose feeds are those of its first
 * step, which was watched, so that every timing reads the experts that it chose. */
#include "bench/tune_inside.h"

#include "bench/step_device.h"

#include <stdlib.h>

enum { MOST_LAUNCHES = 16 };
static const double ROUND_SECONDS = 0.01;

struct timing {
    struct tuner *t;
    bool *left_out; /* [n_ops] */
    double *rest;   /* [n_groups] us of the step without the group */
    uint32_t launches;
};

static uint32_t feeds_of(const struct tuner *t) {
    return t->decode ? t->rows : 1;
}

static void all_by_default(struct tuner *t) {
    for (uint32_t i = 0; i < t->n_groups; i++)
        t->group[i].way = 0;
}

/* The step as its groups are set, `left_out` or with all. */
static weir_status step_us(struct timing *d, const bool *left_out, double *us, weir_error *err) {
    double seconds = 0;
    weir_status s = tune_choose(d->t, err);
    if (!s)
        s = device_step_seconds(d->t->rig.r, d->t->feed, feeds_of(d->t), left_out, d->launches,
                                &seconds, err);
    *us = 1e6 * seconds;
    return s;
}

/* best_alone: only groups of which another way than the default was quickest will be timed. */
static weir_status begin(struct timing *d, struct tuner *t, bool best_alone, weir_error *err) {
    double us = 0;
    *d = (struct timing){.t = t, .launches = 1};
    d->left_out = calloc(t->rig.n_ops, sizeof *d->left_out);
    d->rest = calloc(t->n_groups + 1, sizeof *d->rest);
    if (!d->left_out || !d->rest)
        return weir_fail(err, WEIR_NO_MEMORY, "tune", "no memory");
    all_by_default(t);
    if (!t->decode) /* the same prompt again, not one behind it */
        runner_reset(t->rig.r, 0);
    weir_status s = step_us(d, NULL, &us, err);
    while (d->launches < MOST_LAUNCHES && d->launches * us * 1e-6 < ROUND_SECONDS)
        d->launches *= 2;
    for (uint32_t g = 0; g < t->n_groups && !s; g++) {
        for (uint32_t i = 0; i < t->rig.n_ops; i++)
            d->left_out[i] = t->group_of[i] == g;
        if (best_alone ? t->group[g].best : t->group[g].ways)
            s = step_us(d, d->left_out, &d->rest[g], err);
    }
    return s;
}

static weir_status end(struct timing *d, weir_status s) {
    free(d->left_out);
    free(d->rest);
    return s;
}

/* One sample of one way of one group, all others by default. */
static weir_status sample(struct timing *d, uint32_t g, uint32_t way, uint32_t round, double *us,
                          weir_error *err) {
    struct group *group = &d->t->group[g];
    all_by_default(d->t);
    group->way = way;
    weir_status s = step_us(d, NULL, us, err);
    group->us[way][round] = *us > d->rest[g] ? *us - d->rest[g] : 0;
    return s;
}

weir_status tune_device_all(struct tuner *t, double *ms, weir_error *err) {
    struct timing d;
    weir_status s = begin(&d, t, false, err);
    for (uint32_t round = 0; round < t->o->rounds && !s; round++) {
        tune_next_round(t);
        for (uint32_t g = 0; g < t->n_groups && !s; g++)
            for (uint32_t i = 0; i < t->group[g].ways && !s; i++) {
                uint32_t way = (i + round) % t->group[g].ways;
                double us;
                s = sample(&d, g, way, round, &us, err);
                if (way == 0)
                    ms[round] = 1e-3 * us;
            }
    }
    return end(&d, s);
}

weir_status tune_device_best(struct tuner *t, double ms[2][TUNE_ROUNDS], weir_error *err) {
    struct timing d;
    weir_status s = begin(&d, t, true, err);
    for (uint32_t round = 0; round < t->o->rounds && !s; round++) {
        double us;
        tune_next_round(t);
        for (uint32_t g = 0; g < t->n_groups && !s; g++)
            for (uint32_t i = 0; i < 2 && t->group[g].best && !s; i++)
                s = sample(&d, g, (i + round) % 2 ? t->group[g].best : 0, round, &us, err);
        for (uint32_t i = 0; i < 2 && !s; i++) {
            uint32_t best = (i + round) % 2;
            for (uint32_t g = 0; g < t->n_groups; g++)
                t->group[g].way = best ? t->group[g].best : 0;
            s = step_us(&d, NULL, &us, err);
            ms[best][round] = 1e-3 * us;
        }
    }
    return end(&d, s);
}
