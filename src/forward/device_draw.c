/* device_draw.c: see device_draw.h. Called by the device's program for every step. */
#include "forward/device_draw.h"

struct gpu_draw device_draw(const struct batch_logits *want, uint32_t vocab) {
    const struct gpu_draw not = {.how = GPU_DRAW_NOT};
    if (!want->state || want->n_top >= 0 || sample_changes_logits(want->state))
        return not ;
    const struct sample_rules *r = &want->state->rules;
    if (sample_takes_best(r))
        return (struct gpu_draw){.how = GPU_DRAW_BEST};
    const bool cut = r->top_k > 0 && (uint32_t)r->top_k < vocab;
    if (cut && r->top_k > GPU_SAMPLE_TOP)
        return not ;
    return (struct gpu_draw){
        .point = sample_point(want->state),
        .inverse = 1.0f / r->temperature,
        .min_p = r->min_p,
        .top_p = r->top_p,
        .top_k = cut ? (uint32_t)r->top_k : 0,
        .how = GPU_DRAW,
    };
}

bool device_drew(const struct gpu_drawn *drawn, const struct batch_logits *want,
                 struct sample_result *out) {
    switch (drawn->state) {
    case GPU_DRAWN: sample_take(want->state, drawn->id, out); return true;
    case GPU_DRAWN_NOT_FINITE: sample_no_token(out, true); return true;
    case GPU_DRAWN_NOTHING_LEFT: sample_no_token(out, false); return true;
    default: return false;
    }
}
