/* fuzz_rank_file.c: any bytes as a rank file and as a tokenizer_config.json. The input is the rank
 * file, a NUL, and the configuration. To get past the rule that all single bytes must be there,
 * input that begins with '+' is appended to a file that holds them. Holds that what is accepted
 * encodes a fixed text so that it decodes to the same bytes, and that every id has a text. */
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARY = 700 };

static void put_single_bytes(struct text *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char line[32];
    for (unsigned c = 0; c < 256; c++) {
        snprintf(line, sizeof line, "%c%c== %u\n", digits[c >> 2], digits[(c & 3) << 4], c);
        text_puts(out, line);
    }
}

static void use(const struct tokenizer *t) {
    static const char plain[] = "It's aaaaaaaa ababab  1234\n\n\xE4\xBD\xA0\xE5\xA5\xBD <|open|>[x]"
                                " \xF0\x9F\x98\x80 the quick brown FOX's";
    struct ids ids = {0};
    struct text back = {0};
    tokenizer_encode(t, plain, sizeof plain - 1, &ids);
    for (size_t i = 0; i < ids.n; i++)
        WEIR_ASSERT(tokenizer_kind(t, ids.data[i]) == TOKEN_TEXT);
    tokenizer_decode(t, ids.data, ids.n, false, &back);
    WEIR_ASSERT(back.n == sizeof plain - 1 && memcmp(back.data, plain, back.n) == 0);
    ids.n = 0;
    text_clear(&back);
    tokenizer_encode_special(t, plain, sizeof plain - 1, &ids);
    tokenizer_decode(t, ids.data, ids.n, false, &back);
    WEIR_ASSERT(back.n == sizeof plain - 1 && memcmp(back.data, plain, back.n) == 0);
    for (int32_t id = 0; id < (int32_t)tokenizer_vocab(t); id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, id, &n);
        WEIR_ASSERT(piece && n > 0);
        if (id >= (int32_t)tokenizer_ranks(t))
            WEIR_ASSERT(tokenizer_special(t, piece) == id);
    }
    ids_free(&ids);
    text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct text ranks = {0};
    const char *input = (const char *)data, *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - input) : size;
    bool append = n > 0 && input[0] == '+';
    if (append)
        put_single_bytes(&ranks);
    text_append(&ranks, input + append, n - append);
    struct tokenizer *t;
    weir_error err = {0};
    weir_status status = tokenizer_parse(ranks.data, ranks.n, nul ? nul + 1 : NULL,
                                         nul ? size - n - 1 : 0, VOCABULARY, &t, &err);
    if (status) {
        WEIR_ASSERT(!t && err.code == status && err.message[0]);
    } else {
        use(t);
        tokenizer_close(t);
    }
    text_free(&ranks);
    return 0;
}
