/* case_mla.h: records of history for cases of latent attention. */
#ifndef WEIR_TESTS_OPS_GPU_CASE_MLA_H
#define WEIR_TESTS_OPS_GPU_CASE_MLA_H

#include "base/dtype.h"
#include "ops/kv.h"
#include "tests/ops/gpu/cases.h"

/* Writes the record of x, latent + extra values; what it cannot say is taken over into `x`, rounded
 * to BF16 if so wanted. */
void case_put_record(unsigned char *to, float *x, enum dtype dtype, uint32_t latent, uint32_t extra,
                     bool rounded);

#endif
