/* fuzz_config.c: any bytes as a config.json. A description that is accepted must keep the promises
 * every later room builds on. */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct walk {
    uint64_t bytes;
    uint32_t n;
};

enum { WALK_LIMIT = 4000 };

static weir_status visit(void *arg, const struct weight_spec *w) {
    struct walk *k = arg;
    WEIR_ASSERT(w->rows > 0 && w->cols > 0 && w->bytes > 0);
    WEIR_ASSERT(strlen(w->name) < sizeof w->name - 1);
    WEIR_ASSERT(w->dtype != DTYPE_MXFP4 || w->cols % 32 == 0);
    WEIR_ASSERT(!__builtin_add_overflow(k->bytes, w->bytes, &k->bytes));
    return ++k->n == WALK_LIMIT ? WEIR_BAD_VALUE : WEIR_OK;
}

static void check(const struct model *m) {
    uint32_t kda = 0;
    WEIR_ASSERT(m->layers >= 1 && m->layers <= MODEL_MAX_LAYERS);
    for (uint32_t l = 0; l < m->layers; l++) {
        kda += m->layer_is_kda[l];
        WEIR_ASSERT(model_kind_index(m, l) < m->layers);
    }
    WEIR_ASSERT(kda == model_kda_layers(m) && model_mla_layers(m) == m->layers - kda);
    WEIR_ASSERT(m->moe_freq >= 1 && m->n_eos >= 1 && m->n_eos <= MODEL_MAX_EOS);
    for (uint32_t i = 0; i < m->n_eos; i++)
        WEIR_ASSERT(m->eos[i] >= 0 && (uint32_t)m->eos[i] < m->vocab);
    WEIR_ASSERT(m->gate_lower_bound <= 0 && m->gate_lower_bound >= -5);
    WEIR_ASSERT(isfinite(m->eps) && m->eps > 0 && isfinite(m->route_scale));
    if (m->experts)
        WEIR_ASSERT(m->top_k >= 1 && m->top_k <= m->experts && m->experts % m->groups == 0);
    struct walk k = {0};
    model_each_weight(m, visit, &k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct model m;
    weir_error err = {0};
    weir_status s = model_parse((const char *)data, bytes, "config.json", &m, &err);
    if (s == WEIR_OK)
        check(&m);
    else
        WEIR_ASSERT(err.code == s && err.message[0] && strcmp(err.where, "config.json") == 0);
    return 0;
}
