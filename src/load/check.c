/* check.c: what a checkpoint's tensors must look like. Called by weights.c for every weight before
 * any is used, and by inspect.c. */
#include "load/check.h"
#include "base/arena.h"
#include "base/plural.h"

#include <string.h>

/* The sizes of a tensor as text: "[3072, 1792]". */
static void show_shape(const struct safetensors_entry *e, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "[");
    for (uint32_t i = 0; i < e->n_dims && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRIu64, i ? ", " : "", e->dims[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
}

static weir_status wrong_shape(const struct shard_tensor *t, uint64_t rows, uint64_t cols,
                               bool vector, weir_error *err) {
    char shape[192], want[64];
    show_shape(t->entry, shape, sizeof shape);
    if (vector)
        snprintf(want, sizeof want, "[%" PRIu64 "]", cols);
    else
        snprintf(want, sizeof want, "[%" PRIu64 ", %" PRIu64 "]", rows, cols);
    return weir_fail(err, WEIR_BAD_FILE, t->shard->name,
                     "tensor %s: has shape %s, config.json makes it %s", t->entry->name, shape,
                     want);
}

static bool is_matrix_of(const struct safetensors_entry *e, uint64_t rows, uint64_t cols) {
    return e->n_dims == 2 && e->dims[0] == rows && e->dims[1] == cols;
}

/* The sizes of `e` without those that are 1, at most `cap` of them; returns how many there are. */
static uint32_t squeeze(const struct safetensors_entry *e, uint64_t *dims, uint32_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_dims; i++)
        if (e->dims[i] != 1) {
            if (n < cap)
                dims[n] = e->dims[i];
            n++;
        }
    return n;
}

bool role_is_widened(enum role role) {
    switch (role) {
    case ROLE_FINAL_NORM:
    case ROLE_FINAL_RES_NORM:
    case ROLE_FINAL_RES_PROJ:
    case ROLE_INPUT_NORM:
    case ROLE_POST_NORM:
    case ROLE_ATTN_RES_NORM:
    case ROLE_ATTN_RES_PROJ:
    case ROLE_FFN_RES_NORM:
    case ROLE_FFN_RES_PROJ:
    case ROLE_Q_CONV:
    case ROLE_K_CONV:
    case ROLE_V_CONV:
    case ROLE_A_LOG:
    case ROLE_DT_BIAS:
    case ROLE_O_NORM:
    case ROLE_Q_A_NORM:
    case ROLE_KV_A_NORM:
    case ROLE_ROUTER_BIAS:
    case ROLE_LATENT_NORM: return true;
    case ROLE_EMBED:
    case ROLE_HEAD:
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_F_A:
    case ROLE_F_B:
    case ROLE_B:
    case ROLE_G:
    case ROLE_G_A:
    case ROLE_G_B:
    case ROLE_O:
    case ROLE_Q_A:
    case ROLE_Q_B:
    case ROLE_KV_A:
    case ROLE_KV_B:
    case ROLE_GATE_UP_GATE:
    case ROLE_GATE_UP_UP:
    case ROLE_DOWN:
    case ROLE_ROUTER:
    case ROLE_LATENT_DOWN:
    case ROLE_LATENT_UP:
    case ROLE_EXPERT_W1:
    case ROLE_EXPERT_W2:
    case ROLE_EXPERT_W3:
    case ROLE_COUNT: return false;
    }
    return false;
}

static weir_status check_shape(const struct shard_tensor *t, const struct model *m,
                               const struct weight_spec *w, weir_error *err) {
    const struct safetensors_entry *e = t->entry;
    uint64_t dims[2] = {1, 1};
    if (!role_is_widened(w->role))
        return is_matrix_of(e, w->rows, w->cols) ? WEIR_OK
                                                 : wrong_shape(t, w->rows, w->cols, false, err);
    uint32_t n = squeeze(e, dims, 2);
    if (w->role == ROLE_A_LOG) {
        if (n <= 1 && dims[0] >= m->kda_heads)
            return WEIR_OK;
        char shape[192];
        show_shape(e, shape, sizeof shape);
        return weir_fail(err, WEIR_BAD_FILE, t->shard->name,
                         "tensor %s: has shape %s, but needs a value for each of %" PRIu32 " %s",
                         e->name, shape, m->kda_heads, plural(m->kda_heads, "head", "heads"));
    }
    if (w->rows > 1 && w->cols > 1) /* convolution: [channels, 1, taps] or [channels, taps] */
        return n == 2 && dims[0] == w->rows && dims[1] == w->cols
                   ? WEIR_OK
                   : wrong_shape(t, w->rows, w->cols, false, err);
    uint64_t count = (uint64_t)w->rows * w->cols;
    return n <= 1 && dims[0] == count ? WEIR_OK : wrong_shape(t, w->rows, count, true, err);
}

static weir_status check_pack(const struct shard_tensor *t, uint32_t rows, uint32_t cols,
                              weir_error *err) {
    if (strcmp(t->entry->dtype, "U8") != 0)
        return weir_fail(err, WEIR_BAD_FILE, t->shard->name,
                         "tensor %s: has dtype %s, MXFP4 codes and scales are U8", t->entry->name,
                         t->entry->dtype);
    return is_matrix_of(t->entry, rows, cols) ? WEIR_OK : wrong_shape(t, rows, cols, false, err);
}

static weir_status find_packed(const struct shards *s, const struct weight_spec *w,
                               const char *where, struct found_weight *out, weir_error *err) {
    char name[sizeof w->name + 8];
    snprintf(name, sizeof name, "%s_packed", w->name);
    out->data = shards_find(s, name);
    if (!out->data && shards_find(s, w->name))
        return weir_fail(err, WEIR_BAD_FILE, where,
                         "tensor %s is missing: %s is there unpacked, but config.json has a "
                         "quantization_config",
                         name, w->name);
    if (!out->data)
        return weir_fail(err, WEIR_BAD_FILE, where,
                         "tensor %s is missing (U8 [%" PRIu32 ", %" PRIu32 "])", name, w->rows,
                         w->cols / 2);
    snprintf(name, sizeof name, "%s_scale", w->name);
    out->scale = shards_find(s, name);
    if (!out->scale)
        return weir_fail(err, WEIR_BAD_FILE, where,
                         "tensor %s is missing (U8 [%" PRIu32 ", %" PRIu32 "])", name, w->rows,
                         w->cols / 32);
    out->dtype = DTYPE_MXFP4;
    weir_status status = check_pack(out->data, w->rows, w->cols / 2, err);
    return status ? status : check_pack(out->scale, w->rows, w->cols / 32, err);
}

weir_status weight_find(const struct shards *s, const struct model *m, const struct weight_spec *w,
                        const char *where, struct found_weight *out, weir_error *err) {
    *out = (struct found_weight){0};
    if (w->dtype == DTYPE_MXFP4)
        return find_packed(s, w, where, out, err);
    out->data = shards_find(s, w->name);
    if (!out->data) {
        char packed[sizeof w->name + 8];
        snprintf(packed, sizeof packed, "%s_packed", w->name);
        bool other = shards_find(s, packed) != NULL;
        return weir_fail(err, WEIR_BAD_FILE, where, "tensor %s is missing%s", w->name,
                         other ? ": it is there packed, but config.json announces no packing for it"
                               : "");
    }
    const char *dtype = out->data->entry->dtype;
    if (strcmp(dtype, "BF16") == 0)
        out->dtype = DTYPE_BF16;
    else if (strcmp(dtype, "F32") == 0)
        out->dtype = DTYPE_F32;
    else
        return weir_fail(err, WEIR_BAD_FILE, out->data->shard->name,
                         "tensor %s: has dtype %s, it must be BF16 or F32", w->name, dtype);
    return check_shape(out->data, m, w, err);
}

weir_status weight_check_scale_bytes(const struct shard_tensor *t, const unsigned char *data,
                                     uint32_t cols, weir_error *err) {
    const unsigned char *bad = memchr(data, 255, t->entry->end - t->entry->begin);
    if (!bad)
        return WEIR_OK;
    size_t at = (size_t)(bad - data), groups = cols / 32;
    return weir_fail(err, WEIR_BAD_FILE, t->shard->name,
                     "tensor %s: the scale of row %zu, group %zu (columns %zu..%zu) is the byte "
                     "255, which means NaN: corrupt weights",
                     t->entry->name, at / groups, at % groups, at % groups * 32,
                     at % groups * 32 + 31);
}

weir_status weight_check_scales(const struct found_weight *f, const struct weight_spec *w,
                                weir_error *err) {
    return f->scale ? weight_check_scale_bytes(f->scale, shard_tensor_data(f->scale), w->cols, err)
                    : WEIR_OK;
}

static bool starts_with(const char *text, const char *head) {
    return strncmp(text, head, strlen(head)) == 0;
}

bool tensor_is_skipped(const struct model *m, const char *name) {
    if (starts_with(name, "vision_tower.") || starts_with(name, "mm_projector.") ||
        strstr(name, "rotary_emb."))
        return true;
    char head[64];
    snprintf(head, sizeof head, "%smodel.layers.", m->prefix);
    if (!starts_with(name, head))
        return false;
    char *end;
    unsigned long layer = strtoul(name + strlen(head), &end, 10);
    return end > name + strlen(head) && *end == '.' && layer >= m->layers;
}

void adopt_prefix(const struct shards *s, struct model *m) {
    static const char embed[] = "model.embed_tokens.weight",
                      wrapped[] = "language_model.model.embed_tokens.weight";
    if (shards_find(s, embed) && !shards_find(s, wrapped))
        m->prefix[0] = 0;
    else if (shards_find(s, wrapped) && !shards_find(s, embed))
        snprintf(m->prefix, sizeof m->prefix, "language_model.");
}

struct name_set {
    char (*name)[sizeof((struct weight_spec *)0)->name + 8];
    size_t n, cap;
};

/* Counts where there is no room, so that one pass sizes the table for the next. */
static weir_status collect_name(void *arg, const struct weight_spec *spec) {
    struct name_set *set = arg;
    const char *const tail[2] = {spec->dtype == DTYPE_MXFP4 ? "_packed" : "", "_scale"};
    for (size_t i = 0; i < (spec->dtype == DTYPE_MXFP4 ? 2u : 1u); i++) {
        if (set->n < set->cap)
            snprintf(set->name[set->n], sizeof set->name[0], "%s%s", spec->name, tail[i]);
        set->n++;
    }
    return WEIR_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

weir_status each_unlisted_tensor(const struct shards *s, const struct model *m,
                                 void (*visit)(void *arg, const struct shard_tensor *t,
                                               bool skipped),
                                 void *arg, weir_error *err) {
    struct name_set set = {0};
    model_each_weight(m, collect_name, &set);
    set.cap = set.n;
    set.n = 0;
    set.name = malloc(size_mul(set.cap, sizeof *set.name));
    if (!set.name)
        return weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory for %zu names", set.cap);
    model_each_weight(m, collect_name, &set);
    qsort(set.name, set.n, sizeof *set.name, compare_names);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const char *name = s->tensor[i].entry->name;
        if (!bsearch(name, set.name, set.n, sizeof *set.name, compare_names))
            visit(arg, &s->tensor[i], tensor_is_skipped(m, name));
    }
    free(set.name);
    return WEIR_OK;
}
