/* byte_tokenizer.h: a vocabulary made on the spot for tests and fuzz targets: the 256 bytes, each
 * its own rank, and the special tokens a chat format needs. */
#ifndef WEIR_TESTS_TEXT_BYTE_TOKENIZER_H
#define WEIR_TESTS_TEXT_BYTE_TOKENIZER_H

#include "text/tokenizer.h"

enum { BYTE_RANKS = 256 };

struct byte_special {
    const char *spelling; /* NULL: left out */
    int32_t id;
    bool hidden;
};

static inline struct tokenizer *byte_tokenizer(const struct byte_special *specials, size_t n,
                                               uint32_t vocabulary) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct text ranks = {0}, config = {0};
    char line[160];
    for (int b = 0; b < BYTE_RANKS; b++) {
        snprintf(line, sizeof line, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
        text_puts(&ranks, line);
    }
    text_puts(&config, "{\"added_tokens_decoder\":{");
    for (size_t i = 0, written = 0; i < n; i++) {
        if (specials[i].spelling == NULL)
            continue;
        snprintf(line, sizeof line, "%s\"%d\":{\"content\":\"%s\",\"special\":%s}",
                 written++ ? "," : "", specials[i].id, specials[i].spelling,
                 specials[i].hidden ? "true" : "false");
        text_puts(&config, line);
    }
    text_puts(&config, "}}");
    struct tokenizer *t = NULL;
    weir_error err = {0};
    if (tokenizer_parse(ranks.data, ranks.n, config.data, config.n, vocabulary, &t, &err) !=
        WEIR_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        abort();
    }
    text_free(&ranks);
    text_free(&config);
    return t;
}

#endif
