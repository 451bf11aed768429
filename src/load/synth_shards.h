/* synth_shards.h: writes the shards and the index of a synthetic checkpoint. */
#ifndef WEIR_LOAD_SYNTH_SHARDS_H
#define WEIR_LOAD_SYNTH_SHARDS_H

#include "load/synth.h"
#include "model/model.h"

/* Writes every weight of the model below o->out, o->threads members at a time. */
weir_status synth_shards(const struct model *m, const struct synth_options *o,
                         struct synth_result *result, weir_error *err);

#endif
