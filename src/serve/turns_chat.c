/* turns_chat.c: see turns_chat.h. Called by the chat handlers (rendering, often on a worker) and by
 * api_run.c at the end of a choice. Invariant that bites: both sides must hash the same bytes: the
 * ids of the prompt up to where generation began, then the body as the renderer would write it. */
#include "serve/turns_chat.h"

#include "base/error.h"
#include "text/chat_turn.h"

#include <string.h>

static EVP_MD_CTX *hash_new(void) {
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    WEIR_ASSERT(h && EVP_DigestInit_ex(h, EVP_sha256(), NULL) == 1);
    return h;
}

static void put(EVP_MD_CTX *h, const void *data, size_t bytes) {
    if (bytes)
        WEIR_ASSERT(EVP_DigestUpdate(h, data, bytes) == 1);
}

static void put_sized(EVP_MD_CTX *h, const char *s, size_t bytes) {
    uint64_t n = bytes;
    put(h, &n, sizeof n);
    put(h, s, bytes);
}

static void hash_end(EVP_MD_CTX *h, unsigned char out[32]) {
    unsigned bytes = 0;
    WEIR_ASSERT(EVP_DigestFinal_ex(h, out, &bytes) == 1 && bytes == 32);
}

void turns_realm(const struct tokenizer *t, bool thinks, unsigned char realm[32]) {
    EVP_MD_CTX *h = hash_new();
    uint32_t vocab = tokenizer_vocab(t);
    put_sized(h, thinks ? "k3" : "kimi", thinks ? 2 : 4);
    for (uint32_t id = 0; id < vocab; id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, (int32_t)id, &n);
        put_sized(h, piece, n);
    }
    hash_end(h, realm);
    EVP_MD_CTX_free(h);
}

/* ---- keys ---- */

static struct turns_key key_of(const struct turns_base *base, const struct text *body) {
    struct turns_key key;
    EVP_MD_CTX *h = hash_new();
    put(h, base, sizeof *base);
    put(h, body->data, body->n);
    hash_end(h, key.bytes);
    EVP_MD_CTX_free(h);
    return key;
}

/* ---- a rendering ---- */

void turns_prompt_begin(struct turns_prompt *p, struct turns *t, const unsigned char realm[32],
                        const char *salt) {
    unsigned char salted = salt != NULL;
    *p = (struct turns_prompt){.turns = t, .hash = hash_new()};
    put(p->hash, realm, 32);
    put(p->hash, &salted, 1);
    put_sized(p->hash, salt, salt ? strlen(salt) : 0);
}

/* The digest of the prompt so far; more may be put behind it. */
static struct turns_base base_of(struct turns_prompt *p, const struct ids *ids) {
    struct turns_base base;
    if (ids->n > p->hashed)
        put(p->hash, ids->data + p->hashed, (ids->n - p->hashed) * sizeof *ids->data);
    p->hashed = ids->n;
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    WEIR_ASSERT(h && EVP_MD_CTX_copy_ex(h, p->hash) == 1);
    hash_end(h, base.bytes);
    EVP_MD_CTX_free(h);
    return base;
}

bool turns_prompt_replay(void *prompt, const struct text *body, struct ids *ids) {
    struct turns_prompt *p = prompt;
    struct turns_base base = base_of(p, ids);
    struct turns_key key = key_of(&base, body);
    if (!turns_get(p->turns, &key, ids))
        return false;
    if (p->n_found == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 16;
        p->found = realloc(p->found, p->capacity * sizeof *p->found);
        WEIR_ASSERT(p->found);
    }
    p->found[p->n_found++] = key;
    return true;
}

void turns_prompt_end(struct turns_prompt *p, const struct ids *ids, struct turns_base *base) {
    turns_touch(p->turns, p->found, p->n_found);
    if (base)
        *base = base_of(p, ids);
    free(p->found);
    EVP_MD_CTX_free(p->hash);
    *p = (struct turns_prompt){0};
}

/* ---- a turn ---- */

void turns_record(struct turns *t, const struct chat *c, const struct turns_turn *turn,
                  struct ids *ids) {
    struct text body = {0};
    size_t calls;
    if (chat_turn_read(c, turn->thinking, ids, &body, &calls) && calls <= turn->calls) {
        struct turns_key key = key_of(&turn->base, &body);
        turns_put(t, &key, ids->data, ids->n);
    }
    text_free(&body);
}
