/* weights.c: every weight of the model, checked and placed. Called by the engine before it says it
 * is ready. Invariants that bite: nothing is used before all of it has been checked, because one
 * missing expert gives fluent but wrong text; and a matrix that does not lie on a multiple of its
 * element size is copied, because safetensors promises no alignment. */
#include "load/weights_inside.h"
#include "base/arena.h"
#include "base/log.h"
#include "load/check.h"

#include <string.h>

/* One pass over the model's list: the first checks and adds up, the second places. */
struct pass {
    struct weights *w;
    const char *where; /* what a missing tensor is blamed on */
    size_t arena_bytes;
    size_t expected; /* tensors of the files that the list accounts for */
    bool reading;    /* experts stay in their files */
    weir_error *err;
};

static uint64_t stored(const struct shard_tensor *t) {
    return t ? t->entry->end - t->entry->begin : 0;
}

static bool misaligned(const struct found_weight *f) {
    uintptr_t at = (uintptr_t)shard_tensor_data(f->data);
    return (f->dtype == DTYPE_BF16 && at % 2) || (f->dtype == DTYPE_F32 && at % 4);
}

/* Elements the loader keeps: A_log may be padded behind its heads. */
static size_t kept(const struct model *m, const struct weight_spec *spec) {
    return spec->role == ROLE_A_LOG ? m->kda_heads : (size_t)spec->rows * spec->cols;
}

static weir_status check_one(void *arg, const struct weight_spec *spec) {
    struct pass *p = arg;
    struct found_weight f;
    weir_status s = weight_find(&p->w->shards, &p->w->model, spec, p->where, &f, p->err);
    bool stays = p->reading && spec->expert >= 0;
    if (s == WEIR_OK && !stays)
        s = weight_check_scales(&f, spec, p->err);
    if (s)
        return s;
    p->w->bytes += stored(f.data) + stored(f.scale);
    p->expected += f.scale ? 2 : 1;
    if (role_is_widened(spec->role))
        p->arena_bytes += arena_piece(kept(&p->w->model, spec) * sizeof(float));
    else if (!stays && misaligned(&f))
        p->arena_bytes += arena_piece(stored(f.data));
    return WEIR_OK;
}

static const float *widened(struct pass *p, const struct weight_spec *spec,
                            const struct found_weight *f) {
    size_t n = kept(&p->w->model, spec);
    float *out = arena_take(&p->w->arena, n * sizeof *out);
    WEIR_ASSERT(out);
    const unsigned char *data = shard_tensor_data(f->data);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        if (f->dtype == DTYPE_F32) {
            memcpy(&out[i], data + 4 * i, 4);
        } else {
            memcpy(&half, data + 2 * i, 2);
            out[i] = bf16_to_f32(half);
        }
    }
    return out;
}

static struct weight *slot_of(struct weights *w, const struct weight_spec *spec) {
    const struct model *m = &w->model;
    if (spec->expert < 0) {
        size_t layer = spec->layer < 0 ? m->layers : (size_t)spec->layer;
        return &w->whole[layer * ROLE_COUNT + spec->role];
    }
    size_t kind = (size_t)(spec->role - ROLE_EXPERT_W1);
    return &w->expert[((size_t)spec->layer * 3 + kind) * m->experts + (size_t)spec->expert];
}

static weir_status place_one(void *arg, const struct weight_spec *spec) {
    struct pass *p = arg;
    struct found_weight f;
    weir_status s = weight_find(&p->w->shards, &p->w->model, spec, p->where, &f, p->err);
    if (s)
        return s;
    struct weight v = {.dtype = f.dtype, .rows = spec->rows, .cols = spec->cols};
    if (role_is_widened(spec->role)) {
        v.data = widened(p, spec, &f);
        v.dtype = DTYPE_F32;
        if (spec->role == ROLE_A_LOG)
            v.cols = p->w->model.kda_heads;
    } else if (p->reading && spec->expert >= 0) {
        size_t at = (size_t)(slot_of(p->w, spec) - p->w->expert);
        p->w->home[at] = (struct expert_home){f.data, f.scale};
    } else if (misaligned(&f)) {
        void *copy = arena_take(&p->w->arena, stored(f.data));
        WEIR_ASSERT(copy);
        memcpy(copy, shard_tensor_data(f.data), stored(f.data));
        v.data = copy;
    } else {
        v.data = shard_tensor_data(f.data);
        v.scale = f.scale ? shard_tensor_data(f.scale) : NULL;
    }
    *slot_of(p->w, spec) = v;
    return WEIR_OK;
}

static weir_status allocate(struct weights *w, size_t arena_bytes, bool reading, weir_error *err) {
    const struct model *m = &w->model;
    size_t experts = (size_t)m->layers * 3 * m->experts;
    w->whole = calloc((size_t)(m->layers + 1) * ROLE_COUNT, sizeof *w->whole);
    if (m->experts)
        w->expert = calloc(experts, sizeof *w->expert);
    if (reading)
        w->home = calloc(experts, sizeof *w->home);
    if (!w->whole || (m->experts && !w->expert) || (reading && !w->home) ||
        arena_open(&w->arena, arena_bytes) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for %zu bytes of vectors",
                         arena_bytes);
    return WEIR_OK;
}

struct unknown {
    const struct shard_tensor *first;
    size_t n;
};

static void count_unknown(void *arg, const struct shard_tensor *t, bool skipped) {
    struct unknown *u = arg;
    if (!skipped && u->n++ == 0)
        u->first = t;
}

/* Names that the model's list does not know are no error, but an operator should hear of them. */
static weir_status warn_of_unknown(const struct weights *w, size_t expected, weir_error *err) {
    struct unknown u = {0};
    if (expected == w->shards.n_tensors)
        return WEIR_OK;
    weir_status s = each_unlisted_tensor(&w->shards, &w->model, count_unknown, &u, err);
    if (u.n)
        log_line(LOG_WARN,
                 "%s: tensor %s is not part of this model and is ignored (%zu such tensors)",
                 u.first->shard->name, u.first->entry->name, u.n);
    return s;
}

/* Experts are checked where they are read from: through the mapping their pages would fill memory.
 */
static weir_status open_experts(const char *dir, struct weights *w,
                                const struct expert_setup *setup, weir_error *err) {
    weir_status s =
        expert_cache_open(dir, &w->model, &w->shards, w->home, w->expert, setup, &w->experts, err);
    if (!s)
        s = expert_cache_check(w->experts, err);
    if (!s) {
        expert_cache_expect_samples(w->experts);
        expert_cache_drop_pages(w->experts);
    }
    return s;
}

weir_status weights_open_reading(const char *dir, const struct model *m,
                                 const struct expert_setup *experts, struct weights **out,
                                 weir_error *err) {
    *out = NULL;
    bool reading = experts && m->experts;
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    w->model = *m;
    weir_status s = shards_open(dir, false, &w->shards, err);
    struct pass pass = {.w = w, .err = err, .reading = reading};
    if (s == WEIR_OK) {
        adopt_prefix(&w->shards, &w->model);
        pass.where = w->shards.has_index ? "model.safetensors.index.json" : w->shards.shard[0].name;
        s = model_each_weight(&w->model, check_one, &pass);
    }
    if (s == WEIR_OK)
        s = allocate(w, pass.arena_bytes, reading, err);
    if (s == WEIR_OK)
        s = model_each_weight(&w->model, place_one, &pass);
    if (s == WEIR_OK && reading)
        s = open_experts(dir, w, experts, err);
    if (s == WEIR_OK)
        s = warn_of_unknown(w, pass.expected, err);
    if (s) {
        weights_close(w);
        return s;
    }
    if (w->shards.claimed_bytes && w->shards.claimed_bytes != w->shards.data_bytes)
        log_line(LOG_WARN,
                 "model.safetensors.index.json: metadata.total_size says %" PRIu64
                 " bytes, the shards hold %" PRIu64,
                 w->shards.claimed_bytes, w->shards.data_bytes);
    *out = w;
    return WEIR_OK;
}

weir_status weights_open(const char *dir, const struct model *m, struct weights **out,
                         weir_error *err) {
    return weights_open_reading(dir, m, NULL, out, err);
}

void weights_close(struct weights *w) {
    if (!w)
        return;
    expert_cache_close(w->experts);
    free(w->home);
    arena_close(&w->arena);
    arena_close(&w->packed);
    shards_close(&w->shards);
    free(w->whole);
    free(w->expert);
    free(w);
}

const struct weight *weights_get(const struct weights *w, enum role role, int32_t layer) {
    WEIR_ASSERT(layer < (int32_t)w->model.layers && role < ROLE_EXPERT_W1);
    if (role == ROLE_HEAD && w->model.tied_head)
        role = ROLE_EMBED;
    size_t l = layer < 0 ? w->model.layers : (size_t)layer;
    return &w->whole[l * ROLE_COUNT + role];
}

const struct weight *weights_experts(const struct weights *w, enum role role, uint32_t layer) {
    WEIR_ASSERT(layer < w->model.layers && role >= ROLE_EXPERT_W1 && role <= ROLE_EXPERT_W3);
    if (!model_is_moe(&w->model, layer))
        return NULL;
    size_t kind = (size_t)(role - ROLE_EXPERT_W1);
    return &w->expert[((size_t)layer * 3 + kind) * w->model.experts];
}

uint64_t weights_bytes(const struct weights *w) {
    return w->bytes;
}

const struct expert_source *weights_source(const struct weights *w) {
    return w->experts ? expert_cache_source(w->experts) : NULL;
}

void weights_count_experts(const struct weights *w, weir_expert_stats *out) {
    *out = (weir_expert_stats){0};
    if (w->experts)
        expert_cache_count(w->experts, out);
}
