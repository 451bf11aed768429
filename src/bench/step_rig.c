/* step_rig.c: see step_rig.h. */
#include "bench/step_rig.h"

#include <stdlib.h>

static weir_status open_runner(const struct step_rig_options *o, struct step_rig *g,
                               weir_error *err) {
    struct tuning *tuning;
    weir_status s = tuning_choose(o->tuning, &o->of, &tuning, err);
    const struct runner_options r = {.column = o->of.column,
                                     .threads = o->of.threads,
                                     .sequences = o->sequences,
                                     .positions = o->positions,
                                     .rows = o->rows > o->sequences ? o->rows : o->sequences,
                                     .logits = o->sequences,
                                     .kv_dtype = o->of.kv,
                                     .tuning = tuning,
                                     .device = o->device};
    if (!s)
        s = runner_open(&g->m, g->w, &r, &g->r, err);
    tuning_free(tuning);
    return s;
}

weir_status step_rig_open(const struct step_rig_options *o, struct step_rig *g, weir_error *err) {
    *g = (struct step_rig){0};
    weir_status s = model_open(o->of.model, &g->m, err);
    if (!s)
        s = weights_open(o->of.model, &g->m, &g->w, err);
    if (!s)
        s = weights_pack(g->w, o->of.column, o->of.dense, 0, o->of.threads, err);
    if (!s)
        s = open_runner(o, g, err);
    if (s)
        return s;
    g->program = runner_program(g->r);
    g->op = program_ops(g->program, &g->n_ops);
    g->ids = calloc(o->prompt_tokens, sizeof *g->ids);
    if (!g->ids)
        return weir_fail(err, WEIR_NO_MEMORY, o->of.model, "no memory for a prompt");
    for (uint32_t i = 0; i < o->prompt_tokens; i++)
        g->ids[i] = (int32_t)((i * 2654435761ull + 12345) % g->m.vocab);
    return WEIR_OK;
}

void step_rig_close(struct step_rig *g) {
    free(g->ids);
    runner_close(g->r);
    weights_close(g->w);
}
