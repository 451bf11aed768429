/* token_ids.c: token ids for prompts of which only lengths and block numbers are known. Called by
 * the replay and by tests. */
#include "base/rng.h"
#include "trace/trace.h"

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

void trace_prompt_ids(const struct trace *t, const struct trace_request *r,
                      const struct trace_play *play, uint64_t from, uint64_t n, int32_t *out) {
    WEIR_ASSERT(play->low >= 0 && play->low < play->high);
    WEIR_ASSERT(from <= r->in && n <= r->in - from);
    uint64_t block = t->sessions[r->session].block_tokens;
    uint64_t tail = (uint64_t)r->n_blocks * block;
    while (n > 0 && from < tail) {
        uint64_t at = from % block, piece = block - at < n ? block - at : n;
        draw(play, rng_at(play->key, STREAM_BLOCK, r->hash_ids[from / block]), at, piece, out);
        from += piece;
        out += piece;
        n -= piece;
    }
    if (n > 0)
        draw(play, rng_at(play->key, STREAM_TAIL, r->number), from - tail, n, out);
}
