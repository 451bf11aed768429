/* fuzz_safetensors.c: any bytes as a shard, once as the whole file and once as the head of a longer
 * one. Whatever is accepted must lie inside the file, apart from everything else. */
#include "load/safetensors.h"

#include <string.h>

static void check(const struct safetensors *s, uint64_t file_bytes) {
    uint64_t total = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct safetensors_entry *e = &s->entry[i];
        WEIR_ASSERT(e->begin <= e->end && e->end <= file_bytes);
        WEIR_ASSERT(e->n_dims <= SAFETENSORS_MAX_DIMS);
        WEIR_ASSERT(safetensors_find(s, e->name) == e);
        WEIR_ASSERT(i == 0 || strcmp(s->entry[i - 1].name, e->name) < 0);
        total += e->end - e->begin;
    }
    WEIR_ASSERT(total <= file_bytes); /* would not hold if two overlapped */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint64_t lengths[] = {bytes, bytes + (UINT64_C(1) << 32)};
    for (int i = 0; i < 2; i++) {
        struct safetensors s;
        weir_error err = {0};
        weir_status status = safetensors_parse(data, bytes, lengths[i], "shard", &s, &err);
        if (status == WEIR_OK)
            check(&s, lengths[i]);
        else
            WEIR_ASSERT(err.code == status && err.message[0] && s.n == 0 && !s.entry);
        safetensors_free(&s);
    }
    return 0;
}
