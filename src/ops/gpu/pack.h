/* pack.h: weights as kernels read them. Of experts what a wave multiplies in one go lies in one
 * piece, in the order of its lanes, so that it comes in whole and nothing is put in place
 * afterwards.
 *
 * Rows are taken in pairs of tiles of 16: the same rows of w1 and of w3, or 32 rows of w2 (rows
 * beyond the last are zero). Of a pair, pieces of 128 columns (BF16: 32) lie one behind the other;
 * of a piece first its vectors of 16 bytes, number (tile * 16 + row) * 4 + t: columns 32 t to
 * 32 t + 31 of the piece as codes (BF16: 8 t to 8 t + 7); then, of codes, scale bytes in the same
 * order. A word of eight codes has its bits where three rotations and a multiplication find pairs
 * of BF16 (kernels/experts.h); the pair of columns 2 q, 2 q + 1 is the q-th. */
#ifndef WEIR_OPS_GPU_PACK_H
#define WEIR_OPS_GPU_PACK_H

#include "ops/ops.h"

/* Bytes of one expert's matrices: of w1 and w3, or (`two` false) of w2. */
size_t gpu_pack_bytes(const struct weight *w, bool two);
/* `other`: w3, or NULL. Both MXFP4 or both BF16. */
void gpu_pack(uint8_t *to, const struct weight *w, const struct weight *other);

/* A BF16 matrix as FP8, with the codes and scales of PACK_FP8 (ops/pack.h), as records.h lays them
 * out (struct gpu_linear_part). Bytes: 0 if it has no such form. */
size_t gpu_pack_fp8_bytes(const struct weight *w);
void gpu_pack_fp8(uint8_t *to, const struct weight *w);

#endif
