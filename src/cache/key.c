/* key.c: the hash chain over blocks of 64 tokens. Called by the index for the prompts it looks up,
 * and by the tiers to print keys.
 * Invariant that bites: a key must not depend on how long the prompt was or where a chunk ended;
 * only whole blocks have keys. */
#include "cache/key.h"

#include "base/error.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct cache_hasher {
    EVP_MD *sha;
    EVP_MD_CTX *context;
};

bool cache_key_equal(const struct cache_key *a, const struct cache_key *b) {
    return !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

void cache_key_hex(const struct cache_key *k, char out[CACHE_KEY_HEX]) {
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < CACHE_KEY_BYTES; i++) {
        out[2 * i] = digit[k->bytes[i] >> 4];
        out[2 * i + 1] = digit[k->bytes[i] & 15];
    }
    out[2 * CACHE_KEY_BYTES] = 0;
}

struct cache_hasher *cache_hasher_open(void) {
    struct cache_hasher *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->sha = EVP_MD_fetch(NULL, "SHA256", NULL);
    h->context = EVP_MD_CTX_new();
    if (!h->sha || !h->context) {
        cache_hasher_close(h);
        return NULL;
    }
    return h;
}

void cache_hasher_close(struct cache_hasher *h) {
    if (!h)
        return;
    EVP_MD_CTX_free(h->context);
    EVP_MD_free(h->sha);
    free(h);
}

struct cache_key cache_hasher_block(struct cache_hasher *h, const struct cache_key *before,
                                    const int32_t *ids) {
    unsigned char message[CACHE_KEY_BYTES + 4 * PAGE_TOKENS];
    struct cache_key out;
    memcpy(message, before->bytes, CACHE_KEY_BYTES);
    for (int i = 0; i < PAGE_TOKENS; i++) {
        uint32_t id = (uint32_t)ids[i];
        unsigned char *at = message + CACHE_KEY_BYTES + 4 * i;
        at[0] = (unsigned char)id;
        at[1] = (unsigned char)(id >> 8);
        at[2] = (unsigned char)(id >> 16);
        at[3] = (unsigned char)(id >> 24);
    }
    int ok = EVP_DigestInit_ex2(h->context, h->sha, NULL) &&
             EVP_DigestUpdate(h->context, message, sizeof message) &&
             EVP_DigestFinal_ex(h->context, out.bytes, NULL);
    /* A wrong key would be somebody else's text; SHA-256 of memory has no way to fail but a broken
     * library. */
    WEIR_ASSERT(ok);
    return out;
}

struct cache_key cache_key_root(const struct cache_key *model, const char *salt) {
    struct cache_key out;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    /* The byte before the salt separates "no salt" from the empty one. */
    unsigned char has_salt = salt != NULL;
    int ok = c && EVP_DigestInit_ex2(c, EVP_sha256(), NULL) &&
             EVP_DigestUpdate(c, model->bytes, sizeof model->bytes) &&
             EVP_DigestUpdate(c, &has_salt, 1) &&
             (!salt || EVP_DigestUpdate(c, salt, strlen(salt))) &&
             EVP_DigestFinal_ex(c, out.bytes, NULL);
    WEIR_ASSERT(ok);
    EVP_MD_CTX_free(c);
    return out;
}
