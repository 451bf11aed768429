/* tensors.c: the exact list of weights that follows from a model description: names, shapes and
 * stored dtypes of the released checkpoints. Called by the loader, by inspect and by the writer of
 * synthetic checkpoints, so that all three agree. Source: docs/model.md, checkpoint. */
#include "model/model.h"

#include <stdarg.h>

struct walk {
    const struct model *m;
    weir_status (*visit)(void *arg, const struct weight_spec *w);
    void *arg;
    weir_status status;
    int32_t layer;
};

static uint64_t stored_bytes(enum dtype dtype, uint64_t rows, uint64_t cols) {
    switch (dtype) {
    case DTYPE_F32: return rows * cols * 4;
    case DTYPE_BF16: return rows * cols * 2;
    case DTYPE_U8: return rows * cols;
    case DTYPE_FP8: break; /* no weight is stored so */
    case DTYPE_MXFP4: return rows * (cols / 2 + cols / 32);
    }
    return 0;
}

static void emit(struct walk *k, enum role role, int32_t expert, enum dtype dtype, uint32_t rows,
                 uint32_t cols, const char *tail) {
    if (k->status)
        return;
    struct weight_spec w = {.role = role,
                            .layer = k->layer,
                            .expert = expert,
                            .dtype = dtype,
                            .rows = rows,
                            .cols = cols,
                            .bytes = stored_bytes(dtype, rows, cols)};
    const char *prefix = k->m->prefix;
    if (k->layer < 0)
        snprintf(w.name, sizeof w.name, "%s%s", prefix, tail);
    else if (expert < 0)
        snprintf(w.name, sizeof w.name, "%smodel.layers.%" PRId32 ".%s", prefix, k->layer, tail);
    else
        snprintf(w.name, sizeof w.name,
                 "%smodel.layers.%" PRId32 ".block_sparse_moe.experts.%" PRId32 ".%s", prefix,
                 k->layer, expert, tail);
    k->status = k->visit(k->arg, &w);
}

static void matrix(struct walk *k, enum role role, uint32_t rows, uint32_t cols, const char *tail) {
    emit(k, role, -1, DTYPE_BF16, rows, cols, tail);
}

static void vector(struct walk *k, enum role role, uint32_t n, const char *tail) {
    emit(k, role, -1, DTYPE_BF16, 1, n, tail);
}

static void vector_f32(struct walk *k, enum role role, uint32_t n, const char *tail) {
    emit(k, role, -1, DTYPE_F32, 1, n, tail);
}

static void kda_mixer(struct walk *k) {
    const struct model *m = k->m;
    const uint32_t h = m->hidden, p = model_kda_width(m), d = m->kda_dim, n = m->kda_heads;
    matrix(k, ROLE_Q, p, h, "self_attn.q_proj.weight");
    matrix(k, ROLE_K, p, h, "self_attn.k_proj.weight");
    matrix(k, ROLE_V, p, h, "self_attn.v_proj.weight");
    emit(k, ROLE_Q_CONV, -1, DTYPE_F32, p, m->conv_taps, "self_attn.q_conv1d.weight");
    emit(k, ROLE_K_CONV, -1, DTYPE_F32, p, m->conv_taps, "self_attn.k_conv1d.weight");
    emit(k, ROLE_V_CONV, -1, DTYPE_F32, p, m->conv_taps, "self_attn.v_conv1d.weight");
    matrix(k, ROLE_F_A, d, h, "self_attn.f_a_proj.weight");
    matrix(k, ROLE_F_B, p, d, "self_attn.f_b_proj.weight");
    matrix(k, ROLE_B, n, h, "self_attn.b_proj.weight");
    if (m->full_rank_gate) {
        matrix(k, ROLE_G, p, h, "self_attn.g_proj.weight");
    } else {
        matrix(k, ROLE_G_A, d, h, "self_attn.g_a_proj.weight");
        matrix(k, ROLE_G_B, p, d, "self_attn.g_b_proj.weight");
    }
    /* One value per head. K3 pads the tensor to the head width (128 for 96 heads); what is behind
     * the heads is zero and never read. */
    const bool padded = m->family == FAMILY_KIMI_K3 && d > n;
    vector_f32(k, ROLE_A_LOG, padded ? d : n, "self_attn.A_log");
    vector_f32(k, ROLE_DT_BIAS, p, "self_attn.dt_bias");
    vector_f32(k, ROLE_O_NORM, d, "self_attn.o_norm.weight");
    matrix(k, ROLE_O, h, p, "self_attn.o_proj.weight");
}

static void mla_mixer(struct walk *k) {
    const struct model *m = k->m;
    const uint32_t h = m->hidden, q = m->heads * (m->nope_dim + m->rope_dim);
    if (m->q_lora) {
        matrix(k, ROLE_Q_A, m->q_lora, h, "self_attn.q_a_proj.weight");
        vector(k, ROLE_Q_A_NORM, m->q_lora, "self_attn.q_a_layernorm.weight");
        matrix(k, ROLE_Q_B, q, m->q_lora, "self_attn.q_b_proj.weight");
    } else {
        matrix(k, ROLE_Q, q, h, "self_attn.q_proj.weight");
    }
    matrix(k, ROLE_KV_A, m->kv_lora + m->rope_dim, h, "self_attn.kv_a_proj_with_mqa.weight");
    vector(k, ROLE_KV_A_NORM, m->kv_lora, "self_attn.kv_a_layernorm.weight");
    matrix(k, ROLE_KV_B, m->heads * (m->nope_dim + m->v_dim), m->kv_lora,
           "self_attn.kv_b_proj.weight");
    if (m->mla_gate)
        matrix(k, ROLE_G, model_mla_width(m), h, "self_attn.g_proj.weight");
    matrix(k, ROLE_O, h, model_mla_width(m), "self_attn.o_proj.weight");
}

static void dense_ffn(struct walk *k) {
    const struct model *m = k->m;
    matrix(k, ROLE_GATE_UP_GATE, m->dense_inter, m->hidden, "mlp.gate_proj.weight");
    matrix(k, ROLE_GATE_UP_UP, m->dense_inter, m->hidden, "mlp.up_proj.weight");
    matrix(k, ROLE_DOWN, m->hidden, m->dense_inter, "mlp.down_proj.weight");
}

static void moe_ffn(struct walk *k) {
    const struct model *m = k->m;
    const uint32_t h = m->hidden, width = model_expert_width(m), inter = m->moe_inter;
    matrix(k, ROLE_ROUTER, m->experts, h, "block_sparse_moe.gate.weight");
    vector_f32(k, ROLE_ROUTER_BIAS, m->experts, "block_sparse_moe.gate.e_score_correction_bias");
    if (m->latent) {
        matrix(k, ROLE_LATENT_DOWN, width, h, "block_sparse_moe.routed_expert_down_proj.weight");
        if (m->latent_norm)
            vector(k, ROLE_LATENT_NORM, width, "block_sparse_moe.routed_expert_norm.weight");
        matrix(k, ROLE_LATENT_UP, h, width, "block_sparse_moe.routed_expert_up_proj.weight");
    }
    if (m->shared_experts) {
        const uint32_t shared = m->shared_experts * inter;
        matrix(k, ROLE_GATE_UP_GATE, shared, h, "block_sparse_moe.shared_experts.gate_proj.weight");
        matrix(k, ROLE_GATE_UP_UP, shared, h, "block_sparse_moe.shared_experts.up_proj.weight");
        matrix(k, ROLE_DOWN, h, shared, "block_sparse_moe.shared_experts.down_proj.weight");
    }
    const enum dtype dtype = m->mxfp4_experts ? DTYPE_MXFP4 : DTYPE_BF16;
    for (uint32_t e = 0; e < m->experts && !k->status; e++) {
        emit(k, ROLE_EXPERT_W1, (int32_t)e, dtype, inter, width, "w1.weight");
        emit(k, ROLE_EXPERT_W2, (int32_t)e, dtype, width, inter, "w2.weight");
        emit(k, ROLE_EXPERT_W3, (int32_t)e, dtype, inter, width, "w3.weight");
    }
}

static void one_layer(struct walk *k, uint32_t layer) {
    const struct model *m = k->m;
    k->layer = (int32_t)layer;
    vector(k, ROLE_INPUT_NORM, m->hidden, "input_layernorm.weight");
    vector(k, ROLE_POST_NORM, m->hidden, "post_attention_layernorm.weight");
    if (m->res_block) {
        vector(k, ROLE_ATTN_RES_NORM, m->hidden, "self_attention_res_norm.weight");
        vector(k, ROLE_ATTN_RES_PROJ, m->hidden, "self_attention_res_proj.weight");
        vector(k, ROLE_FFN_RES_NORM, m->hidden, "mlp_res_norm.weight");
        vector(k, ROLE_FFN_RES_PROJ, m->hidden, "mlp_res_proj.weight");
    }
    if (m->layer_is_kda[layer])
        kda_mixer(k);
    else
        mla_mixer(k);
    if (model_is_moe(m, layer))
        moe_ffn(k);
    else
        dense_ffn(k);
}

weir_status model_each_weight(const struct model *m,
                              weir_status (*visit)(void *arg, const struct weight_spec *w),
                              void *arg) {
    struct walk k = {.m = m, .visit = visit, .arg = arg, .layer = -1};
    matrix(&k, ROLE_EMBED, m->vocab, m->hidden, "model.embed_tokens.weight");
    for (uint32_t l = 0; l < m->layers && !k.status; l++)
        one_layer(&k, l);
    k.layer = -1;
    vector(&k, ROLE_FINAL_NORM, m->hidden, "model.norm.weight");
    if (m->res_block) {
        vector(&k, ROLE_FINAL_RES_NORM, m->hidden, "model.output_attn_res_norm.weight");
        vector(&k, ROLE_FINAL_RES_PROJ, m->hidden, "model.output_attn_res_proj.weight");
    }
    if (!m->tied_head)
        matrix(&k, ROLE_HEAD, m->vocab, m->hidden, "lm_head.weight");
    return k.status;
}

uint32_t model_kind_index(const struct model *m, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < layer; l++)
        n += m->layer_is_kda[l] == m->layer_is_kda[layer];
    return n;
}

uint32_t model_kda_layers(const struct model *m) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < m->layers; l++)
        n += m->layer_is_kda[l];
    return n;
}

uint32_t model_mla_layers(const struct model *m) {
    return m->layers - model_kda_layers(m);
}

const char *model_family_name(enum model_family f) {
    switch (f) {
    case FAMILY_KIMI_K3: return "kimi_k3";
    case FAMILY_KIMI_LINEAR: return "kimi_linear";
    }
    return "?";
}
