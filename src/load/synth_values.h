/* synth_values.h: the numbers of a synthetic checkpoint, as a function of (seed, weight, position),
 * so that they do not depend on who computes them or in which order. */
#ifndef WEIR_LOAD_SYNTH_VALUES_H
#define WEIR_LOAD_SYNTH_VALUES_H

#include "model/model.h"

#include <stddef.h>

/* Fills `data` with rows [row0, row0 + rows) of the weight as the file stores them: F32 or BF16
 * elements, or packed codes (then `scale` receives the scale bytes). */
void synth_fill(const struct model *m, const struct weight_spec *w, uint64_t seed, uint32_t row0,
                uint32_t rows, unsigned char *data, unsigned char *scale);

#endif
