/* turns_chat.h: exact replay of assistant turns: what the model generated is kept, and when a later
 * request brings the same message at the same place, its prompt gets the same ids.
 *
 * The key of a turn is a SHA-256 of the tokenizer and markup, the cache salt (none differs from
 * empty), all ids of the prompt that it answered, and the message's body as the renderer would
 * write it: reasoning, content and calls. So a turn is found only by who sends a message of the
 * very same text behind the very same prompt under the same salt, and what is found says nothing
 * else (chat_turn_read). */
#ifndef WEIR_SERVE_TURNS_CHAT_H
#define WEIR_SERVE_TURNS_CHAT_H

#include "serve/turns.h"
#include "text/chat.h"

#include <openssl/evp.h>

/* A digest of vocabulary and markup: turns of another model's file are never found. Linear in the
 * vocabulary; once per model. */
void turns_realm(const struct tokenizer *t, bool thinks, unsigned char realm[32]);

/* A prompt, hashed as far as it has grown. */
struct turns_base {
    unsigned char bytes[32];
};

/* One rendering; `replay` is its chat_replay, with the struct as argument. Any thread, one at a
 * time. */
struct turns_prompt {
    struct turns *turns;
    EVP_MD_CTX *hash;
    size_t hashed;           /* ids */
    struct turns_key *found; /* in the order of the conversation */
    size_t n_found, capacity;
};
/* `salt` NULL: none. The list that will be rendered into must be empty. */
void turns_prompt_begin(struct turns_prompt *p, struct turns *t, const unsigned char realm[32],
                        const char *salt);
bool turns_prompt_replay(void *prompt, const struct text *body, struct ids *ids);
/* The prompt is complete: notes the use of what was replayed and hands out what the next turn
 * starts from. Frees what the struct holds; `base` NULL: nothing else (also after a failure). */
void turns_prompt_end(struct turns_prompt *p, const struct ids *ids, struct turns_base *base);

/* What was generated for a prompt. */
struct turns_turn {
    struct turns_base base;
    bool thinking;  /* as in the prompt */
    uint32_t calls; /* at most so many were told */
};
/* Keeps a turn that the model itself ended: `ids` are all it generated, the id that ended it
 * included (a safety stop is replaced by the end of turn). Turns whose ids say more or other than
 * their message are not kept. */
void turns_record(struct turns *t, const struct chat *c, const struct turns_turn *turn,
                  struct ids *ids);

#endif
