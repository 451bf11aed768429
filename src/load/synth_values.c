/* synth_values.c: seeded weights whose activations stay near 1 through any number of layers, with
 * gates and decays in the range of trained models, so that neither a state dies out at once nor a
 * logit runs away. Called by synth.c from several threads. */
#include "load/synth_values.h"
#include "base/rng.h"
#include "load/mxfp4.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 256 }; /* values made at a time; a multiple of the MXFP4 group */

/* How the values of a role are distributed. */
struct law {
    float mean, spread; /* of a bell curve; of [mean - spread, mean + spread] where even */
    bool even;
};

static struct law law_of(const struct model *m, const struct weight_spec *w) {
    switch (w->role) {
    case ROLE_EMBED: return (struct law){0, 1, false};
    case ROLE_FINAL_NORM:
    case ROLE_FINAL_RES_NORM:
    case ROLE_INPUT_NORM:
    case ROLE_POST_NORM:
    case ROLE_ATTN_RES_NORM:
    case ROLE_FFN_RES_NORM:
    case ROLE_O_NORM:
    case ROLE_Q_A_NORM:
    case ROLE_KV_A_NORM:
    case ROLE_LATENT_NORM: return (struct law){1, 0.1f, false};
    case ROLE_A_LOG: /* the softplus gate is trained from A in 1..16 */
        return m->gate_lower_bound < 0 ? (struct law){-0.2f, 0.4f, true}
                                       : (struct law){1.4f, 1.3f, true};
    case ROLE_DT_BIAS: return (struct law){-4, 3, true};
    case ROLE_ROUTER_BIAS: return (struct law){0, 0.01f, false};
    case ROLE_HEAD:
    case ROLE_FINAL_RES_PROJ:
    case ROLE_ATTN_RES_PROJ:
    case ROLE_FFN_RES_PROJ:
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
    case ROLE_COUNT: break;
    }
    return (struct law){0, 1.0f / sqrtf((float)w->cols), false};
}

static uint64_t stream_of(const struct weight_spec *w) {
    return (uint64_t)w->role << 48 | (uint64_t)(w->layer + 1) << 32 | (uint64_t)(w->expert + 1);
}

/* Values at positions [first, first + CHUNK). A bell curve is the sum of four bytes, so one draw
 * gives two values; its largest magnitude is 3.45 standard deviations. */
static void draw(struct law law, uint64_t key, uint64_t first, float *out) {
    static const float deviation = 147.80166f; /* sqrt(4 * (256^2 - 1) / 12) */
    const float step = law.spread / deviation;
    for (uint32_t i = 0; i < CHUNK; i += 2) {
        const uint64_t bits = rng_mix(key ^ ((first + i) / 2));
        const uint64_t pairs = (bits & 0x00FF00FF00FF00FFu) + ((bits >> 8) & 0x00FF00FF00FF00FFu);
        const int32_t a = (int32_t)((pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF));
        const int32_t b = (int32_t)(((pairs >> 32) & 0xFFFF) + (pairs >> 48));
        if (law.even) {
            out[i] = law.mean + law.spread * ((float)(bits & 0xFFFFFF) * 0x1p-23f - 1.0f);
            out[i + 1] = law.mean + law.spread * ((float)(bits >> 40) * 0x1p-23f - 1.0f);
        } else {
            out[i] = law.mean + step * (float)(a - 510);
            out[i + 1] = law.mean + step * (float)(b - 510);
        }
    }
}

static void store(const struct weight_spec *w, const float *x, size_t n, size_t at,
                  unsigned char *data, unsigned char *scale) {
    switch (w->dtype) {
    case DTYPE_F32: memcpy(data + 4 * at, x, 4 * n); break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            const uint16_t h = f32_to_bf16(x[i]);
            memcpy(data + 2 * (at + i), &h, 2);
        }
        break;
    case DTYPE_MXFP4:
        for (size_t i = 0; i < n; i += MXFP4_GROUP_ELEMENTS)
            mxfp4_quantise_group(x + i, data + (at + i) / 2,
                                 scale + (at + i) / MXFP4_GROUP_ELEMENTS);
        break;
    case DTYPE_U8:
    case DTYPE_FP8: break; /* no weight is stored so */
    }
}

void synth_fill(const struct model *m, const struct weight_spec *w, uint64_t seed, uint32_t row0,
                uint32_t rows, unsigned char *data, unsigned char *scale) {
    const struct law law = law_of(m, w);
    const uint64_t key = rng_mix(rng_mix(seed) ^ stream_of(w));
    const uint64_t first = (uint64_t)row0 * w->cols, end = first + (uint64_t)rows * w->cols;
    float x[CHUNK];
    for (uint64_t at = first / CHUNK * CHUNK; at < end; at += CHUNK) {
        draw(law, key, at, x);
        if (w->role == ROLE_A_LOG) /* zeros behind the heads, as in the released files */
            for (uint64_t i = 0; i < CHUNK; i++)
                x[i] = at + i < m->kda_heads ? x[i] : 0;
        const uint64_t from = at < first ? first : at, to = at + CHUNK > end ? end : at + CHUNK;
        store(w, x + (from - at), (size_t)(to - from), (size_t)(from - first), data, scale);
    }
}
