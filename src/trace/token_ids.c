/* token_ids.c: token ids for prompts of which only lengths and block numbers are known. Called by
 * the replay and by tests. */
#include "base/rng.h"
#include "trace/trace.h"

#include <math.h>

/* Blocks and tails draw from different streams, so that a block number and a request number of the
 * same value give different tokens. */
enum { STREAM_BLOCK = 1, STREAM_TAIL = 2, STREAM_PLAY = 3 };

uint64_t trace_play_key(uint64_t seed, uint64_t number) {
    return rng_at(seed, STREAM_PLAY, number);
}

/* n ids of the sequence `key`, beginning with its `from`th. */
static void draw(const struct trace_play *play, uint64_t key, uint64_t from, uint64_t n,
                 int32_t *out) {
    uint64_t range = (uint64_t)((int64_t)play->high - play->low);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (int32_t)(play->low + (int64_t)(rng_mix(key ^ rng_mix(from + i)) % range));
}

/* floor(tokens * scale); ascending in `tokens`, which is below 2^53. */
static uint64_t scaled(uint64_t tokens, double scale) {
    return scale == 1 || scale == 0 ? tokens : (uint64_t)floor((double)tokens * scale);
}

uint64_t trace_scaled_in(const struct trace_request *r, double scale) {
    uint64_t n = scaled(r->in, scale);
    return n ? n : 1;
}

uint64_t trace_scaled_out(const struct trace_request *r, double scale) {
    uint64_t n = scale == 1 || scale == 0 ? r->out : (uint64_t)round((double)r->out * scale);
    return n ? n : 1;
}

/* The block that holds position `at`: few tokens times a small scale leave blocks empty. */
static uint64_t block_at(uint64_t at, uint64_t block, double scale) {
    uint64_t k = (uint64_t)((double)at / ((double)block * scale));
    while (scaled((k + 1) * block, scale) <= at)
        k++;
    while (scaled(k * block, scale) > at)
        k--;
    return k;
}

void trace_prompt_ids(const struct trace *t, const struct trace_request *r,
                      const struct trace_play *play, uint64_t from, uint64_t n, int32_t *out) {
    double scale = play->length_scale > 0 ? play->length_scale : 1;
    WEIR_ASSERT(play->low >= 0 && play->low < play->high);
    WEIR_ASSERT(from + n >= n && from + n <= trace_scaled_in(r, scale));
    uint64_t block = t->sessions[r->session].block_tokens;
    uint64_t tail = scaled((uint64_t)r->n_blocks * block, scale);
    while (n > 0 && from < tail) {
        uint64_t k = block_at(from, block, scale);
        uint64_t begin = scaled(k * block, scale), left = scaled((k + 1) * block, scale) - from;
        uint64_t piece = left < n ? left : n;
        draw(play, rng_at(play->key, STREAM_BLOCK, r->hash_ids[k]), from - begin, piece, out);
        from += piece;
        out += piece;
        n -= piece;
    }
    if (n > 0)
        draw(play, rng_at(play->key, STREAM_TAIL, r->number), from - tail, n, out);
}
