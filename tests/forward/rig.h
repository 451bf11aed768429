/* rig.h: a loaded model and a runner over it, for the tests of this folder. */
#ifndef WEIR_TESTS_FORWARD_RIG_H
#define WEIR_TESTS_FORWARD_RIG_H

#include "tests/test.h"

#include "forward/runner.h"

#include <math.h>

/* Under a sanitizer every step takes ten times as long: the same paths, fewer lengths. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RIG_SLOW = 1 };
#else
enum { RIG_SLOW = 0 };
#endif

struct rig {
    struct model m;
    struct weights *w;
    struct runner *r;
};

static inline void rig_open_dense(struct rig *g, const char *model, const struct runner_options *o,
                                  enum dense_form dense) {
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(model));
    if (model_open(dir, &g->m, &err) || weights_open(dir, &g->m, &g->w, &err) ||
        weights_pack(g->w, o->column, dense, 0, 1, &err) ||
        runner_open(&g->m, g->w, o, &g->r, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static inline void rig_open(struct rig *g, const char *model, const struct runner_options *o) {
    rig_open_dense(g, model, o, DENSE_BF16);
}

static inline void rig_close(struct rig *g) {
    runner_close(g->r);
    weights_close(g->w);
}

/* Ids that depend on the seed alone. */
static inline void rig_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint32_t seed) {
    uint64_t x = seed * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((x >> 33) % vocab);
    }
}

#endif
