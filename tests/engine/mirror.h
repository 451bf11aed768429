/* mirror.h: an executor that computes almost nothing and checks everything. Its 'model' reads each
 * token's history through the pages and the state slot it was handed, so a wrong page, slot, id,
 * order or position changes the answer; what the answer must be is computed without any engine by
 * mirror_solo. Batches are looked at when they are collected, as late as the seam allows. */
#ifndef WEIR_TESTS_ENGINE_MIRROR_H
#define WEIR_TESTS_ENGINE_MIRROR_H

#include "engine/engine.h"

struct mirror_options {
    uint32_t vocab, pages, slots;
    uint32_t max_seqs, max_rows, max_waiting, max_model_len;
    enum weir_policy policy;
    bool async;
    int32_t eos;
    uint32_t step_us; /* how long a step takes */
};

/* Seeds with this bit fail (a logit was not finite) at the draw that their low 8 bits count. */
#define MIRROR_FAILS (1ull << 40)

weir_engine *mirror_open(const struct mirror_options *o);

/* The answer of one request alone. Writes at most max_new ids, returns how many; *finish tells how
 * it ends. */
uint32_t mirror_solo(const struct mirror_options *o, const int32_t *prompt, uint32_t n,
                     const weir_params *p, int32_t *out, weir_finish *finish);
/* Reported logprob of prompt token `target`. */
float mirror_logprob(const int32_t *prompt, uint32_t target);

/* Waits until the request has ended, reading its tokens into out; returns how many came. Fails the
 * test after a minute. */
uint32_t wait_end(weir_request *r, weir_token *out, uint32_t cap, weir_progress *progress,
                  const char *what);

#endif
