/* fuzz_answer.c: any bytes as the answer of a server, in one piece and in pieces drawn from the
 * input: both must mean the same. And as its metrics, which must be read without a fault. */
#include "base/rng.h"
#include "bench/adapter.h"
#include "bench/answer.h"

#include <string.h>

static void run(struct answer *a, int status, const char *bytes, size_t n, uint64_t seed) {
    uint32_t chunks, sum = 0;
    uint64_t draws = 0;
    a->keep_text = true;
    for (size_t at = 0; at < n;) {
        size_t piece = seed ? 1 + rng_at(seed, 0, draws++) % 9 : n;
        piece = n - at < piece ? n - at : piece;
        answer_feed(a, status, bytes + at, piece, &chunks);
        sum += chunks;
        at += piece;
    }
    answer_end(a, status, &chunks);
    WEIR_ASSERT(sum + chunks == a->n_chunks);
}

static void compare(const struct answer *a, const struct answer *b) {
    WEIR_ASSERT(a->n_chunks == b->n_chunks && a->failed == b->failed);
    WEIR_ASSERT(a->is_stream == b->is_stream && a->is_finished == b->is_finished);
    WEIR_ASSERT(a->is_done == b->is_done && a->has_usage == b->has_usage);
    WEIR_ASSERT(a->completion_tokens == b->completion_tokens && !strcmp(a->id, b->id));
    WEIR_ASSERT(a->content.n == b->content.n && a->all.n == b->all.n);
    WEIR_ASSERT(!strcmp(a->error_type, b->error_type));
    WEIR_ASSERT(!a->failed == !a->error_type[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 1)
        return 0;
    struct answer whole = {0}, pieces = {0};
    const char *bytes = (const char *)data + 1;
    int status = data[0] % 8 == 0 ? 503 : 200;
    run(&whole, status, bytes, n - 1, 0);
    run(&pieces, status, bytes, n - 1, 1 + data[0]);
    compare(&whole, &pieces);
    answer_free(&whole);
    answer_free(&pieces);
    adapter_of_metrics(bytes, n - 1);
    for (int k = SERVER_WEIR; k < SERVER_KINDS; k++) {
        struct server_sample s;
        adapter_read((enum server_kind)k, bytes, n - 1, &s);
    }
    return 0;
}
