/* fingerprint.c: a name for the weights of a checkpoint, so that caches outside of the process are
 * used by the same model only. Called when an engine is opened.
 * Reading every byte of 1.5 TB at every start would take longer than loading; samples of every
 * tensor tell trained checkpoints apart, because training moves all of them. */
#include "load/weights_inside.h"

#include "base/error.h"

#include <openssl/evp.h>
#include <string.h>

enum { SAMPLE_BYTES = 64 };

static void add(EVP_MD_CTX *c, const void *data, size_t bytes) {
    WEIR_ASSERT(EVP_DigestUpdate(c, data, bytes));
}

void weights_fingerprint(const struct weights *w, uint8_t out[WEIGHTS_FINGERPRINT_BYTES]) {
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    WEIR_ASSERT(c && EVP_DigestInit_ex2(c, EVP_sha256(), NULL));
    for (size_t i = 0; i < w->shards.n_tensors; i++) {
        const struct shard_tensor *t = &w->shards.tensor[i];
        const struct safetensors_entry *e = t->entry;
        const unsigned char *data = shard_tensor_data(t);
        size_t bytes = (size_t)(e->end - e->begin);
        size_t sample = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
        add(c, e->name, strlen(e->name) + 1);
        add(c, e->dtype, strlen(e->dtype) + 1);
        add(c, e->dims, e->n_dims * sizeof *e->dims);
        add(c, data, sample);
        add(c, data + (bytes - sample) / 2, sample);
        add(c, data + (bytes - sample), sample);
    }
    WEIR_ASSERT(EVP_DigestFinal_ex(c, out, NULL));
    EVP_MD_CTX_free(c);
    if (w->experts) /* the samples came with whole pages, and more around them */
        expert_cache_drop_pages(w->experts);
}
