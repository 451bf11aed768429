/* config.c: config.json -> struct model. Called by whoever opens a checkpoint, before any weight is
 * touched. Invariant that bites: the bounds below are what makes every later product of dimensions
 * fit its type, so no dimension may enter struct model without one. Facts and defaults:
 * docs/model.md. */
#include "base/file.h"
#include "base/plural.h"
#include "model/json_fields.h"
#include "model/model.h"
#include "model/vision.h"

#include <math.h>
#include <string.h>

/* Above anything published by a wide margin, and small enough that heads * dim and shared * inter
 * fit 32 bits, and all bytes of a model 64. */
enum {
    MAX_VOCAB = 1 << 22,
    MAX_HIDDEN = 1 << 16,
    MAX_INTER = 1 << 19,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 1024,
    MAX_LORA = 1 << 14,
    MAX_EXPERTS = 1 << 14,
    MAX_TOP_K = 256,
    MAX_SHARED = 64,
    MAX_POSITION = 1 << 30,
    MAX_CONV_TAPS = 16,
    MAX_CONFIG_BYTES = 16 << 20,
    MXFP4_GROUP = 32,
};

static uint32_t dimension(struct json_fields *f, const char *name, int64_t high) {
    return (uint32_t)json_field_integer(f, name, true, 1, 1, high);
}

/* A dimension that may be absent or null: 0. */
static uint32_t optional(struct json_fields *f, const char *name, int64_t low, int64_t high) {
    return (uint32_t)json_field_integer(f, name, false, 0, low, high);
}

/* Which family, and the prefix of its tensor names. A flat file calls itself kimi_linear even when
 * it was cut out of a K3 checkpoint; attention residuals are what only K3 has. */
static void read_family(struct json_fields *f, const json_t *top, bool nested, struct model *m) {
    const char *type = json_field_string(f, "model_type", true);
    if (f->status)
        return;
    if (strcmp(type, "kimi_k2") == 0 || strcmp(type, "kimi_k25") == 0 ||
        strcmp(type, "deepseek_v3") == 0) {
        json_field_refuse(f, "model_type", NULL, WEIR_UNSUPPORTED,
                          "%s models are not supported by this build (it runs kimi_k3 and "
                          "kimi_linear)",
                          type);
        return;
    }
    bool wrapper = strcmp(type, "kimi_k3") == 0;
    if (!wrapper && strcmp(type, "kimi_linear") != 0) {
        json_field_refuse(f, "model_type", json_object_get(top, "model_type"), WEIR_UNSUPPORTED,
                          "must be kimi_k3 or kimi_linear");
        return;
    }
    struct json_fields text = *f;
    text.first = nested ? json_object_get(top, "text_config") : top;
    text.second = top;
    bool k3 = wrapper || json_field(&text, "attn_res_block_size");
    m->family = k3 ? FAMILY_KIMI_K3 : FAMILY_KIMI_LINEAR;
    snprintf(m->prefix, sizeof m->prefix, "%s", wrapper ? "language_model." : "");
}

/* One of the two 1-based lists: marks its layers in `seen`, which must all be new. */
static void read_layer_list(struct json_fields *f, const char *name, uint32_t layers, bool kda,
                            bool *seen, bool *is_kda) {
    if (f->status)
        return;
    const json_t *list = json_field(f, name);
    if (!list || !json_is_array(list)) {
        json_field_refuse(f, name, list, WEIR_BAD_FILE,
                          list ? "must be a list of layer numbers" : "is missing");
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > layers) {
            json_field_refuse(
                f, name, v, WEIR_BAD_FILE,
                "must hold layer numbers from 1 to %" PRIu32 " (the first layer is 1)", layers);
            return;
        }
        uint32_t l = (uint32_t)json_integer_value(v) - 1;
        if (seen[l]) {
            json_field_refuse(f, name, NULL, WEIR_BAD_FILE,
                              "layer %" PRIu32 " is listed twice (kda_layers and full_attn_layers "
                              "must share out 1..%" PRIu32 ")",
                              l + 1, layers);
            return;
        }
        seen[l] = true;
        is_kda[l] = kda;
    }
}

static void read_linear_attention(struct json_fields *text, struct model *m) {
    const json_t *object = json_field_object(text, "linear_attn_config", true);
    if (text->status)
        return;
    struct json_fields f = *text;
    f.first = object;
    f.second = NULL;
    f.scope = "linear_attn_config.";
    bool seen[MODEL_MAX_LAYERS] = {false};
    read_layer_list(&f, "full_attn_layers", m->layers, false, seen, m->layer_is_kda);
    read_layer_list(&f, "kda_layers", m->layers, true, seen, m->layer_is_kda);
    for (uint32_t l = 0; l < m->layers && !f.status; l++)
        if (!seen[l])
            json_field_refuse(&f, "kda_layers", NULL, WEIR_BAD_FILE,
                              "layer %" PRIu32
                              " is in neither kda_layers nor full_attn_layers (they "
                              "must share out 1..%" PRIu32 ")",
                              l + 1, m->layers);
    m->kda_heads = dimension(&f, "num_heads", MAX_HEADS);
    m->kda_dim = dimension(&f, "head_dim", MAX_HEAD_DIM);
    m->conv_taps =
        (uint32_t)json_field_integer(&f, "short_conv_kernel_size", true, 4, 2, MAX_CONV_TAPS);
    m->full_rank_gate = json_field_bool(&f, "use_full_rank_gate", false);
    m->gate_lower_bound = 0;
    if (json_field(&f, "gate_lower_bound")) {
        double bound = json_field_number(&f, "gate_lower_bound", true, -5, -5, 0);
        if (!(bound < 0))
            json_field_refuse(&f, "gate_lower_bound", NULL, WEIR_BAD_FILE,
                              "must lie below 0 (leave it out for the softplus gate)");
        m->gate_lower_bound = (float)bound;
    }
    text->status = f.status;
}

static void read_activation(struct json_fields *f, struct model *m) {
    const char *act = json_field_string(f, "hidden_act", false);
    if (f->status)
        return;
    if (!act || strcmp(act, "silu") == 0)
        m->act = ACT_SILU;
    else if (strcmp(act, "situ") == 0)
        m->act = ACT_SITU;
    else
        json_field_refuse(f, "hidden_act", json_field(f, "hidden_act"), WEIR_UNSUPPORTED,
                          "must be \"silu\" or \"situ\"");
    m->situ_beta = (float)json_field_number(f, "activation_situ_beta", false, 1.0, 1e-3, 1e6);
    m->situ_linear_beta =
        (float)json_field_number(f, "activation_situ_linear_beta", false, 0, 1e-3, 1e6);
}

static void read_moe(struct json_fields *f, struct model *m) {
    m->experts = optional(f, "num_experts", 0, MAX_EXPERTS);
    m->first_dense =
        (uint32_t)json_field_integer(f, "first_k_dense_replace", false, 0, 0, MODEL_MAX_LAYERS);
    m->moe_freq = (uint32_t)json_field_integer(f, "moe_layer_freq", false, 1, 1, MODEL_MAX_LAYERS);
    m->groups = m->top_groups = 1;
    if (f->status || m->experts == 0)
        return;
    m->top_k = dimension(f, "num_experts_per_token",
                         m->experts < MAX_TOP_K ? m->experts : (int64_t)MAX_TOP_K);
    m->moe_inter = dimension(f, "moe_intermediate_size", MAX_INTER);
    m->shared_experts = optional(f, "num_shared_experts", 0, MAX_SHARED);
    m->latent = optional(f, "routed_expert_hidden_size", 1, MAX_HIDDEN);
    m->latent_norm = m->latent && json_field_bool(f, "latent_moe_use_norm", false);
    m->renormalize = json_field_bool(f, "moe_renormalize", true);
    m->route_scale = (float)json_field_number(f, "routed_scaling_factor", false, 1.0, 1e-6, 1e6);
    const char *func = json_field_string(f, "moe_router_activation_func", false);
    m->router_softmax = func && strcmp(func, "softmax") == 0;
    if (func && !m->router_softmax && strcmp(func, "sigmoid") != 0)
        json_field_refuse(f, "moe_router_activation_func",
                          json_field(f, "moe_router_activation_func"), WEIR_UNSUPPORTED,
                          "must be \"sigmoid\" or \"softmax\"");
    const char *method = json_field_string(f, "topk_method", false);
    if (method && strcmp(method, "noaux_tc") != 0)
        json_field_refuse(f, "topk_method", json_field(f, "topk_method"), WEIR_UNSUPPORTED,
                          "must be \"noaux_tc\" (choice by score plus correction bias)");
    uint32_t groups =
        (uint32_t)json_field_integer(f, "num_expert_group", false, 1, 1, (int64_t)m->experts);
    uint32_t top_groups =
        (uint32_t)json_field_integer(f, "topk_group", false, 1, 1, (int64_t)groups);
    if (!json_field_bool(f, "use_grouped_topk", true) || groups == top_groups || f->status)
        return; /* every group may be chosen from: plain top-k */
    m->groups = groups;
    m->top_groups = top_groups;
    uint32_t size = m->experts / groups;
    if (m->experts % groups != 0 || size < 2)
        json_field_refuse(f, "num_expert_group", json_field(f, "num_expert_group"), WEIR_BAD_FILE,
                          "must cut the %" PRIu32 " %s into equal groups of at least 2", m->experts,
                          plural(m->experts, "expert", "experts"));
    else if (m->top_k > size * top_groups)
        json_field_refuse(f, "num_experts_per_token", json_field(f, "num_experts_per_token"),
                          WEIR_BAD_FILE,
                          "must be at most %" PRIu32 ", the experts in %" PRIu32 " %s",
                          size * top_groups, top_groups, plural(top_groups, "group", "groups"));
}

static bool word_is(const json_t *object, const char *name, const char *word) {
    const json_t *v = json_object_get(object, name);
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

/* The one group of a compressed-tensors file must say what the unpacking assumes: E2M1 codes, one
 * E8M0 scale per 32, no zero points, nothing done to activations. */
static bool is_mxfp4_group(const json_t *group) {
    const json_t *w = json_object_get(group, "weights");
    const json_t *bits = json_object_get(w, "num_bits"), *size = json_object_get(w, "group_size");
    const json_t *symmetric = json_object_get(w, "symmetric");
    const json_t *input = json_object_get(group, "input_activations");
    return json_is_integer(bits) && json_integer_value(bits) == 4 && word_is(w, "type", "float") &&
           json_is_integer(size) && json_integer_value(size) == MXFP4_GROUP &&
           (!symmetric || json_is_true(symmetric)) && (!input || json_is_null(input));
}

static void read_quantisation(struct json_fields *f, struct model *m) {
    const json_t *q = json_field_object(f, "quantization_config", false);
    if (!q || f->status)
        return;
    static const char rule[] = "weights are BF16, F32, or compressed-tensors mxfp4-pack-quantized "
                               "(4-bit float, groups of 32, weights only)";
    const json_t *method = json_object_get(q, "quant_method"),
                 *format = json_object_get(q, "format");
    if (!word_is(q, "quant_method", "compressed-tensors")) {
        json_field_refuse(f, "quantization_config.quant_method", method, WEIR_UNSUPPORTED,
                          "unknown quantisation: %s", rule);
        return;
    }
    if (!word_is(q, "format", "mxfp4-pack-quantized")) {
        json_field_refuse(f, "quantization_config.format", format, WEIR_UNSUPPORTED,
                          "unknown quantisation: %s", rule);
        return;
    }
    const json_t *groups = json_object_get(q, "config_groups");
    json_t *group = NULL;
    const char *name = NULL;
    if (json_object_size(groups) != 1)
        json_field_refuse(f, "quantization_config.config_groups", groups, WEIR_UNSUPPORTED,
                          "unknown quantisation: exactly one group is understood");
    json_object_foreach((json_t *)(uintptr_t)groups, name, group) {
        if (!is_mxfp4_group(group))
            json_field_refuse(f, "quantization_config.config_groups", group, WEIR_UNSUPPORTED,
                              "unknown quantisation in %s: %s", name, rule);
    }
    m->mxfp4_experts = m->experts > 0;
    const uint32_t width = model_expert_width(m);
    if (m->experts && width % MXFP4_GROUP)
        json_field_refuse(f, m->latent ? "routed_expert_hidden_size" : "hidden_size", NULL,
                          WEIR_BAD_FILE,
                          "%" PRIu32 " is no multiple of 32, so a row of MXFP4 experts would end "
                          "inside a scale group",
                          width);
    if (m->experts && m->moe_inter % MXFP4_GROUP)
        json_field_refuse(f, "moe_intermediate_size", NULL, WEIR_BAD_FILE,
                          "%" PRIu32 " is no multiple of 32, so a row of MXFP4 experts would end "
                          "inside a scale group",
                          m->moe_inter);
}

/* Special ids: the container's own fields come before those of text_config, whose defaults are
 * those of another family. */
static void read_ids(struct json_fields *f, struct model *m) {
    const int64_t last = (int64_t)m->vocab - 1;
    m->bos = (int32_t)json_field_integer(f, "bos_token_id", false, last < 1 ? last : 1, 0, last);
    m->pad = (int32_t)json_field_integer(f, "pad_token_id", false, 0, 0, last);
    const json_t *eos = json_field(f, "eos_token_id");
    if (!json_is_array(eos)) {
        m->eos[0] =
            (int32_t)json_field_integer(f, "eos_token_id", false, last < 2 ? last : 2, 0, last);
        m->n_eos = 1;
        return;
    }
    size_t n = json_array_size(eos);
    if (n == 0 || n > MODEL_MAX_EOS) {
        json_field_refuse(f, "eos_token_id", eos, WEIR_BAD_FILE,
                          "must be one id or a list of 1 to %d ids", MODEL_MAX_EOS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(eos, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > last) {
            json_field_refuse(f, "eos_token_id", v, WEIR_BAD_FILE,
                              "must hold ids from 0 to %" PRId64, last);
            return;
        }
        m->eos[m->n_eos++] = (int32_t)json_integer_value(v);
    }
}

static void read_text(struct json_fields *f, struct model *m) {
    m->vocab = (uint32_t)json_field_integer(f, "vocab_size", false, 163840, 1, MAX_VOCAB);
    m->hidden = dimension(f, "hidden_size", MAX_HIDDEN);
    m->layers = dimension(f, "num_hidden_layers", MODEL_MAX_LAYERS);
    m->heads = dimension(f, "num_attention_heads", MAX_HEADS);
    m->dense_inter = dimension(f, "intermediate_size", MAX_INTER);
    /* Kimi-Linear files may give the context under the tokenizer's name for it. */
    const bool other_name =
        !json_field(f, "max_position_embeddings") && json_field(f, "model_max_length");
    m->max_position =
        dimension(f, other_name ? "model_max_length" : "max_position_embeddings", MAX_POSITION);
    m->eps = (float)json_field_number(f, "rms_norm_eps", false, 1e-6, 1e-12, 0.1);
    m->lora_eps = 1e-6f;
    m->q_lora = optional(f, "q_lora_rank", 1, MAX_LORA);
    m->kv_lora = dimension(f, "kv_lora_rank", MAX_LORA);
    m->nope_dim = dimension(f, "qk_nope_head_dim", MAX_HEAD_DIM);
    m->rope_dim = dimension(f, "qk_rope_head_dim", MAX_HEAD_DIM);
    m->v_dim = dimension(f, "v_head_dim", MAX_HEAD_DIM);
    m->mla_gate = json_field_bool(f, "mla_use_output_gate", false);
    if (!json_field_bool(f, "mla_use_nope", false))
        json_field_refuse(f, "mla_use_nope", NULL, WEIR_UNSUPPORTED,
                          "must be true: attention with rotary positions is not supported, and "
                          "running the weights without it would give wrong text");
    m->res_block = optional(f, "attn_res_block_size", 1, MODEL_MAX_LAYERS);
    json_field_integer(f, "num_nextn_predict_layers", false, 0, 0, MODEL_MAX_LAYERS);
    read_activation(f, m);
    if (!f->status)
        read_linear_attention(f, m);
    read_moe(f, m);
    if (!f->status)
        read_quantisation(f, m);
}

weir_status model_parse(const char *json, size_t bytes, const char *path, struct model *out,
                        weir_error *err) {
    memset(out, 0, sizeof *out);
    json_t *top;
    weir_status s = json_text_parse(json, bytes, path, &top, err);
    if (s)
        return s;
    struct model m = {0};
    struct json_fields f = {.first = top, .scope = "", .path = path, .err = err};
    if (!json_is_object(top)) {
        json_decref(top);
        return weir_fail(err, WEIR_BAD_FILE, path, "must hold a JSON object");
    }
    const json_t *text = json_field_object(&f, "text_config", false);
    if (!f.status)
        read_family(&f, top, text != NULL, &m);
    if (!f.status) {
        f.first = text ? text : top;
        f.second = text ? top : NULL;
        read_text(&f, &m);
    }
    if (!f.status) {
        struct json_fields ids = {
            .first = top, .second = text, .scope = "", .path = path, .err = err};
        m.tied_head = json_field_bool(&ids, "tie_word_embeddings", false);
        read_ids(&ids, &m);
        f.status = ids.status;
    }
    f.first = top;
    f.second = NULL;
    if (!f.status)
        m.vision_bytes = model_vision_bytes(&f, m.hidden);
    json_decref(top);
    if (!f.status)
        *out = m;
    return f.status;
}

weir_status model_open(const char *dir, struct model *out, weir_error *err) {
    char *path = file_join(dir, "config.json"), *text;
    size_t bytes;
    if (!path)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    weir_status s = file_read(path, MAX_CONFIG_BYTES, &text, &bytes, err);
    if (s == WEIR_OK) {
        s = model_parse(text, bytes, path, out, err);
        free(text);
    }
    free(path);
    return s;
}
