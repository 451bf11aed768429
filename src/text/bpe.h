/* bpe.h: byte-pair merging with a table of ranks. Used by tokenizer.c; read-only after bpe_open. */
#ifndef WEIR_TEXT_BPE_H
#define WEIR_TEXT_BPE_H

#include "text/tokenizer.h"

/* One token in the table of whole pieces: up to 8 bytes are their own key, longer ones are found by
 * a hash and compared. */
struct bpe_piece {
    uint64_t key;
    uint32_t bytes; /* 0: free slot */
    int32_t id;
};

struct bpe {
    uint32_t ranks;
    const char *bytes;      /* all tokens one behind the other, owned by the caller */
    const uint32_t *offset; /* [ranks + 1] */
    int32_t single[256];    /* ids of the single bytes */
    struct bpe_piece *pieces;
    size_t pieces_mask;
    int32_t *byte_pairs; /* [first byte << 8 | second byte] -> id, or -1 */
    uint64_t *pair_keys; /* left id << 32 | right id; UINT64_MAX: free slot */
    int32_t *pair_ids;
    size_t pairs_mask;
    uint64_t *pair_filter; /* bits of the hashes of all pairs */
};

/* Token i is bytes[offset[i] .. offset[i + 1]); all 256 single bytes are present, no token is empty
 * or occurs twice. False without memory. */
bool bpe_open(struct bpe *b, const char *bytes, const uint32_t *offset, uint32_t ranks);
void bpe_close(struct bpe *b);

/* The id of a token by its bytes, or -1. */
int32_t bpe_find(const struct bpe *b, const char *piece, size_t n);
/* Appends the ids of one pre-token of fewer than 2^31 bytes. */
void bpe_encode(const struct bpe *b, const char *piece, size_t n, struct ids *out);

#endif
