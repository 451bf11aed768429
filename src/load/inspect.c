/* inspect.c: gathers the report of `weir inspect`. Printing is in inspect_print.c. Invariant that
 * bites: the totals follow the model's list, never the files, so that a half downloaded checkpoint
 * shows what it should be beside what is missing. */
#include "load/inspect.h"
#include "load/check.h"

#include <string.h>

static enum inspect_kind kind_of(const struct model *m, const struct weight_spec *w) {
    switch (w->role) {
    case ROLE_EMBED: return INSPECT_EMBEDDING;
    case ROLE_HEAD: return INSPECT_HEAD;
    case ROLE_FINAL_NORM:
    case ROLE_FINAL_RES_NORM:
    case ROLE_FINAL_RES_PROJ:
    case ROLE_INPUT_NORM:
    case ROLE_POST_NORM:
    case ROLE_ATTN_RES_NORM:
    case ROLE_ATTN_RES_PROJ:
    case ROLE_FFN_RES_NORM:
    case ROLE_FFN_RES_PROJ: return INSPECT_NORM;
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_Q_CONV:
    case ROLE_K_CONV:
    case ROLE_V_CONV:
    case ROLE_F_A:
    case ROLE_F_B:
    case ROLE_B:
    case ROLE_G:
    case ROLE_G_A:
    case ROLE_G_B:
    case ROLE_A_LOG:
    case ROLE_DT_BIAS:
    case ROLE_O_NORM:
    case ROLE_O:
    case ROLE_Q_A:
    case ROLE_Q_A_NORM:
    case ROLE_Q_B:
    case ROLE_KV_A:
    case ROLE_KV_A_NORM:
    case ROLE_KV_B: return m->layer_is_kda[w->layer] ? INSPECT_KDA : INSPECT_MLA;
    case ROLE_GATE_UP_GATE:
    case ROLE_GATE_UP_UP:
    case ROLE_DOWN: return model_is_moe(m, (uint32_t)w->layer) ? INSPECT_SHARED : INSPECT_DENSE;
    case ROLE_ROUTER:
    case ROLE_ROUTER_BIAS: return INSPECT_ROUTER;
    case ROLE_LATENT_DOWN:
    case ROLE_LATENT_NORM:
    case ROLE_LATENT_UP: return INSPECT_LATENT;
    case ROLE_EXPERT_W1:
    case ROLE_EXPERT_W2:
    case ROLE_EXPERT_W3: return INSPECT_ROUTED;
    case ROLE_COUNT: break;
    }
    return INSPECT_KINDS;
}

const char *inspect_kind_name(enum inspect_kind kind) {
    switch (kind) {
    case INSPECT_EMBEDDING: return "embedding";
    case INSPECT_HEAD: return "head";
    case INSPECT_KDA: return "kda_mixer";
    case INSPECT_MLA: return "mla_mixer";
    case INSPECT_DENSE: return "dense_ffn";
    case INSPECT_SHARED: return "shared_experts";
    case INSPECT_ROUTED: return "routed_experts";
    case INSPECT_ROUTER: return "router";
    case INSPECT_LATENT: return "latent_projections";
    case INSPECT_NORM: return "norms_and_residual";
    case INSPECT_VISION: return "vision";
    case INSPECT_KINDS: break;
    }
    return "?";
}

static void add(struct inspect_total *t, uint64_t tensors, uint64_t parameters, uint64_t bytes) {
    t->tensors += tensors;
    t->parameters += parameters;
    t->bytes += bytes;
}

/* Keeps a name in a form that a terminal and JSON can show: file contents may hold anything. */
static void note(struct inspect_names *names, const char *name) {
    names->count++;
    if (names->kept == INSPECT_MAX_NAMES)
        return;
    char *out = names->name[names->kept++];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof names->name[0]; n++) {
        const unsigned char c = (unsigned char)name[n];
        out[n] = c < 32 || c > 126 ? '?' : (char)c;
    }
    out[n] = 0;
}

struct survey {
    struct inspect_report *r;
    const struct shards *shards; /* NULL: config.json alone */
};

static uint64_t stored(const struct shard_tensor *t) {
    return t ? t->entry->end - t->entry->begin : 0;
}

/* Bytes as the files have them where they do (F32 instead of BF16 doubles a matrix), else as the
 * list says. */
static uint64_t look_up(struct survey *k, const struct weight_spec *w) {
    struct found_weight f;
    weir_error err = {0};
    if (weight_find(k->shards, &k->r->model, w, "", &f, &err) == WEIR_OK)
        return stored(f.data) + stored(f.scale);
    char text[200];
    if (f.data && (f.scale || w->dtype != DTYPE_MXFP4)) {
        snprintf(text, sizeof text, "%.199s", err.message);
        note(&k->r->unfit, text);
        return w->bytes;
    }
    const bool pack = w->dtype == DTYPE_MXFP4;
    if (!f.data) {
        snprintf(text, sizeof text, "%.180s%s", w->name, pack ? "_packed" : "");
        note(&k->r->missing, text);
    }
    snprintf(text, sizeof text, "%.180s_scale", w->name);
    if (pack && !shards_find(k->shards, text))
        note(&k->r->missing, text);
    return w->bytes;
}

static weir_status survey_one(void *arg, const struct weight_spec *w) {
    struct survey *k = arg;
    struct inspect_report *r = k->r;
    const uint64_t tensors = w->dtype == DTYPE_MXFP4 ? 2 : 1;
    const uint64_t parameters = (uint64_t)w->rows * w->cols;
    const uint64_t bytes = k->shards ? look_up(k, w) : w->bytes;
    const enum inspect_kind kind = kind_of(&r->model, w);
    add(&r->kind[kind], tensors, parameters, bytes);
    add(&r->all, tensors, parameters, bytes);
    if (w->layer >= 0)
        add(&r->layer[w->layer].total, tensors, parameters, bytes);
    if (kind == INSPECT_EMBEDDING)
        r->active_parameters += w->cols;
    else if (kind != INSPECT_ROUTED || (uint32_t)w->expert < r->model.top_k)
        r->active_parameters += parameters;
    if (kind == INSPECT_EMBEDDING && r->model.tied_head)
        r->active_parameters += parameters;
    return WEIR_OK;
}

static void survey_unlisted(void *arg, const struct shard_tensor *t, bool skipped) {
    struct inspect_report *r = arg;
    const char *name = t->entry->name;
    const bool vision =
        strncmp(name, "vision_tower.", 13) == 0 || strncmp(name, "mm_projector.", 13) == 0;
    if (vision) {
        const uint64_t bytes = t->entry->end - t->entry->begin;
        add(&r->kind[INSPECT_VISION], 1, bytes / 2, bytes);
        add(&r->all, 1, bytes / 2, bytes);
    } else if (skipped) {
        r->skipped++;
    } else {
        note(&r->extra, name);
    }
}

static void size_states(struct inspect_report *r) {
    const struct model *m = &r->model;
    const uint64_t kda = model_kda_layers(m), mla = model_mla_layers(m);
    const uint64_t values = mla * (m->kv_lora + m->rope_dim);
    r->kv_bytes_per_token_f32 = values * 4;
    r->kv_bytes_per_token_bf16 = values * 2;
    r->state_recurrent_bytes = kda * m->kda_heads * m->kda_dim * m->kda_dim * 4;
    r->state_conv_bytes = kda * 3 * model_kda_width(m) * (m->conv_taps - 1) * 4;
    for (uint32_t l = 0; l < m->layers; l++) {
        r->layer[l].kda = m->layer_is_kda[l];
        r->layer[l].moe = model_is_moe(m, l);
    }
}

/* A directory may hold a config.json and nothing else; any trace of weights makes them count. */
static bool has_weight_files(const char *dir, weir_error *err, weir_status *status) {
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char *path = file_join(dir, names[i]);
        if (!path) {
            *status = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
            return false;
        }
        FILE *f = fopen(path, "rb");
        free(path);
        if (f) {
            fclose(f);
            return true;
        }
    }
    return false;
}

static weir_status survey_files(const char *dir, struct inspect_report *r, weir_error *err) {
    struct shards shards;
    weir_status s = shards_open(dir, true, &shards, err);
    if (s)
        return s;
    adopt_prefix(&shards, &r->model);
    r->has_weights = true;
    r->shards = (uint32_t)shards.n;
    r->shards_absent = (uint32_t)shards.n_absent;
    r->stored_bytes = shards.data_bytes;
    r->claimed_bytes = shards.claimed_bytes;
    struct survey k = {r, &shards};
    s = model_each_weight(&r->model, survey_one, &k);
    if (s == WEIR_OK)
        s = each_unlisted_tensor(&shards, &r->model, survey_unlisted, r, err);
    shards_close(&shards);
    return s;
}

weir_status inspect_open(const char *dir, struct inspect_report **out, weir_error *err) {
    *out = NULL;
    struct inspect_report *r = calloc(1, sizeof *r);
    if (!r)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    weir_status s = model_open(dir, &r->model, err);
    if (s == WEIR_OK) {
        size_states(r);
        if (has_weight_files(dir, err, &s)) {
            s = survey_files(dir, r, err);
        } else if (s == WEIR_OK) {
            struct survey k = {r, NULL};
            s = model_each_weight(&r->model, survey_one, &k);
            const uint64_t vision = r->model.vision_bytes;
            add(&r->kind[INSPECT_VISION], 0, vision / 2, vision);
            add(&r->all, 0, vision / 2, vision);
        }
    }
    if (s) {
        free(r);
        return s;
    }
    *out = r;
    return WEIR_OK;
}

bool inspect_complete(const struct inspect_report *r) {
    return r->has_weights && r->missing.count == 0 && r->unfit.count == 0;
}
