/* words.h: what synthetic prompts of chat requests are made of: words that each begin with a space.
 * Numbers below `n` stand for words, so that a prompt of numbers becomes text that keeps shared
 * prefixes. */
#ifndef WEIR_BENCH_WORDS_H
#define WEIR_BENCH_WORDS_H

#include "text/tokenizer.h"

struct words {
    const char **word;
    uint8_t *bytes; /* length of each */
    uint32_t n;
    bool exact; /* each is one token, also behind and before any other of them */
    char *memory;
};

/* A fixed list of common English words: about one token each in most vocabularies. */
weir_status words_common(struct words *out, weir_error *err);
/* Words of a model's own vocabulary: ids whose text is a space and letters and that encode to
 * themselves. WEIR_BAD_FILE where there are fewer than 64. */
weir_status words_of(const struct tokenizer *t, const char *dir, struct words *out,
                     weir_error *err);
void words_free(struct words *w);

#endif
