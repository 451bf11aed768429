/* model.h: what a checkpoint is, read from its config.json: dimensions, the layer map, and the
 * exact list of tensors that follows from them. Facts and defaults: docs/model.md (Kimi K3 and
 * Kimi-Linear). No weights are touched here. */
#ifndef WEIR_MODEL_MODEL_H
#define WEIR_MODEL_MODEL_H

#include "base/dtype.h"
#include "base/error.h"

enum model_family { FAMILY_KIMI_K3, FAMILY_KIMI_LINEAR };
enum model_activation { ACT_SILU, ACT_SITU };

enum { MODEL_MAX_LAYERS = 256, MODEL_MAX_EOS = 8 };

struct model {
    enum model_family family;
    char prefix[32]; /* of every text tensor name: "language_model." or "" */

    uint32_t vocab, hidden, layers;
    uint32_t max_position;
    float eps;      /* rms_norm_eps: every norm but the two below */
    float lora_eps; /* q_a_layernorm and kv_a_layernorm: 1e-6, the released code's class default,
                       not rms_norm_eps */
    bool layer_is_kda[MODEL_MAX_LAYERS]; /* 0-based; the lists in config.json are 1-based */

    /* attention residuals */
    uint32_t res_block; /* layers per bank entry; 0: plain residual stream */

    /* KDA */
    uint32_t kda_heads, kda_dim; /* key dim = value dim */
    uint32_t conv_taps;
    bool full_rank_gate;    /* output gate: g_proj, else g_a_proj and g_b_proj */
    float gate_lower_bound; /* < 0: L*sigmoid(exp(A)(z+dt)); 0: -exp(A)*softplus(z+dt). Another
                               formula, not a clamp */

    /* MLA */
    uint32_t heads, q_lora /* 0: direct q_proj */, kv_lora, nope_dim, rope_dim, v_dim;
    bool mla_gate;

    /* FFN */
    enum model_activation act;
    float situ_beta;
    float situ_linear_beta; /* 0: the up branch is not capped */
    uint32_t dense_inter;
    uint32_t first_dense, moe_freq;
    uint32_t experts /* 0: dense model */, top_k, shared_experts, moe_inter;
    uint32_t latent; /* width the routed experts work at; 0: at hidden, without projections */
    bool latent_norm;
    bool router_softmax; /* else sigmoid */
    bool renormalize;
    float route_scale;
    uint32_t groups, top_groups;

    bool mxfp4_experts;
    bool tied_head;
    int32_t bos, pad;
    int32_t eos[MODEL_MAX_EOS];
    uint32_t n_eos;

    /* vision tower, for byte counts alone; 0 where config.json has none */
    uint64_t vision_bytes;
};

/* Parses the text of a config.json (nested text_config or flat). `path` only names the file in
 * errors. WEIR_BAD_FILE: not JSON, a field missing, of the wrong type or out of range (message:
 * field, value, rule). WEIR_UNSUPPORTED: a family or quantisation this build does not run, or
 * mla_use_nope false. */
weir_status model_parse(const char *json, size_t bytes, const char *path, struct model *out,
                        weir_error *err);
/* Reads DIR/config.json and parses it. */
weir_status model_open(const char *dir, struct model *out, weir_error *err);

static inline bool model_is_moe(const struct model *m, uint32_t layer) {
    return m->experts > 0 && layer >= m->first_dense && layer % m->moe_freq == 0;
}
static inline uint32_t model_kda_width(const struct model *m) {
    return m->kda_heads * m->kda_dim;
}
static inline uint32_t model_mla_width(const struct model *m) {
    return m->heads * m->v_dim;
}
static inline uint32_t model_expert_width(const struct model *m) {
    return m->latent ? m->latent : m->hidden;
}
/* Position of `layer` among the layers of its kind: which slice of a state slot or KV page it owns.
 */
uint32_t model_kind_index(const struct model *m, uint32_t layer);
uint32_t model_kda_layers(const struct model *m);
uint32_t model_mla_layers(const struct model *m);
const char *model_family_name(enum model_family f);

/* What a tensor is for. The same names serve KDA and MLA where the checkpoint's do (ROLE_G is the
 * output gate of both). */
enum role {
    /* whole model: layer = -1 */
    ROLE_EMBED,
    ROLE_HEAD,
    ROLE_FINAL_NORM,
    ROLE_FINAL_RES_NORM,
    ROLE_FINAL_RES_PROJ,
    /* every layer */
    ROLE_INPUT_NORM,
    ROLE_POST_NORM,
    ROLE_ATTN_RES_NORM,
    ROLE_ATTN_RES_PROJ,
    ROLE_FFN_RES_NORM,
    ROLE_FFN_RES_PROJ,
    /* KDA */
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_Q_CONV,
    ROLE_K_CONV,
    ROLE_V_CONV,
    ROLE_F_A,
    ROLE_F_B,
    ROLE_B,
    ROLE_G,
    ROLE_G_A,
    ROLE_G_B,
    ROLE_A_LOG,
    ROLE_DT_BIAS,
    ROLE_O_NORM,
    ROLE_O,
    /* MLA: ROLE_Q (direct), ROLE_G and ROLE_O above, and */
    ROLE_Q_A,
    ROLE_Q_A_NORM,
    ROLE_Q_B,
    ROLE_KV_A,
    ROLE_KV_A_NORM,
    ROLE_KV_B,
    /* dense layer, or shared experts of a MoE layer */
    ROLE_GATE_UP_GATE,
    ROLE_GATE_UP_UP,
    ROLE_DOWN,
    /* MoE */
    ROLE_ROUTER,
    ROLE_ROUTER_BIAS,
    ROLE_LATENT_DOWN,
    ROLE_LATENT_NORM,
    ROLE_LATENT_UP,
    /* one per expert: w1 = gate, w2 = down, w3 = up */
    ROLE_EXPERT_W1,
    ROLE_EXPERT_W2,
    ROLE_EXPERT_W3,
    ROLE_COUNT,
};

/* One logical weight matrix or vector the checkpoint must hold. An MXFP4 weight stands in two
 * tensors, NAME_packed (U8 [rows, cols/2]) and NAME_scale (U8 [rows, cols/32]); every other one in
 * a single tensor `name`. */
struct weight_spec {
    char name[192];
    enum role role;
    int32_t layer;       /* -1: whole model */
    int32_t expert;      /* -1: none */
    enum dtype dtype;    /* as the released files store it: F32, BF16 or MXFP4 */
    uint32_t rows, cols; /* a vector has rows = 1; conv taps are [channels, taps] */
    uint64_t bytes;      /* stored, packs and scales together */
};

/* Calls `visit` for every weight in file order of layers; stops at and returns the first failure.
 */
weir_status model_each_weight(const struct model *m,
                              weir_status (*visit)(void *arg, const struct weight_spec *w),
                              void *arg);

#endif
