/* weights_inside.h: a loaded checkpoint as the files of this room see it. */
#ifndef WEIR_LOAD_WEIGHTS_INSIDE_H
#define WEIR_LOAD_WEIGHTS_INSIDE_H

#include "base/arena.h"
#include "load/expert_cache.h"
#include "load/shards.h"
#include "load/weights.h"

struct weights {
    struct model model;
    struct shards shards;
    struct arena arena;    /* f32 copies of vectors, and misaligned matrices */
    struct arena packed;   /* products in the layout of a column (packing.c) */
    struct weight *whole;  /* [(layers + 1) * ROLE_COUNT], whole-model roles last */
    struct weight *expert; /* [layers][3][experts], NULL without MoE layers */
    uint64_t bytes;
    struct expert_home *home;     /* as `expert`, of experts that stay in their files; else NULL */
    struct expert_cache *experts; /* reads them; NULL: they are mapped */
};

#endif
