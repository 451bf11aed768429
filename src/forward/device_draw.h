/* device_draw.h: the one place that says which rows of logits a device draws the token of. All
 * others' logits come to this machine, row by row. */
#ifndef WEIR_FORWARD_DEVICE_DRAW_H
#define WEIR_FORWARD_DEVICE_DRAW_H

#include "ops/gpu/records.h"
#include "ops/sample.h"

/* What the kernel is asked about a row. `how` is GPU_DRAW_NOT where it cannot: nobody draws,
 * logprobs are wanted, a rule changes single logits, or more of the best are kept than it sorts. */
struct gpu_draw device_draw(const struct batch_logits *want, uint32_t vocab);
/* What the kernel found goes into the sequence's state and *out; false: the row is undecided. */
bool device_drew(const struct gpu_drawn *drawn, const struct batch_logits *want,
                 struct sample_result *out);

#endif
