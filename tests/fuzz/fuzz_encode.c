/* fuzz_encode.c: any bytes as text. Holds that decoding gives back the input with invalid sequences
 * replaced, that the text is replaced in the same way when it comes in pieces, that no id beyond
 * the ranks appears, and that each pre-token ends behind its beginning. The first byte of the input
 * chooses how the text is cut and repeated, so that long pieces are met. Run it in the root of the
 * source tree: it reads models/tiny-k3. */
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tokenizer *tokenizer(void) {
    static struct tokenizer *t;
    weir_error err = {0};
    if (!t && tokenizer_open("models/tiny-k3", 2816, &t, &err)) {
        fprintf(stderr, "fuzz_encode: %s: %s\n", err.where, err.message);
        exit(1);
    }
    return t;
}

static struct text replaced(const char *s, size_t n, size_t piece) {
    struct text out = {0};
    struct utf8_stream stream = {0};
    for (size_t at = 0; at < n; at += piece)
        utf8_push(&stream, s + at, n - at < piece ? n - at : piece, &out);
    utf8_finish(&stream, &out);
    text_append(&out, NULL, 0);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct tokenizer *t = tokenizer();
    if (size == 0)
        return 0;
    struct text text = {0};
    for (unsigned i = 0; i <= data[0] >> 4; i++)
        text_append(&text, (const char *)data + 1, size - 1);
    struct text whole = replaced(text.data, text.n, text.n + 1);
    struct text pieces = replaced(text.data, text.n, 1 + (data[0] & 15));
    WEIR_ASSERT(whole.n == pieces.n && memcmp(whole.data, pieces.data, whole.n) == 0);
    WEIR_ASSERT(utf8_valid(whole.data, whole.n));
    for (size_t at = 0, end; at < whole.n; at = end) {
        end = pretoken_end(whole.data, whole.n, at);
        WEIR_ASSERT(end > at && end <= whole.n);
        WEIR_ASSERT(utf8_valid(whole.data + at, end - at));
    }
    struct ids ids = {0};
    struct text back = {0};
    tokenizer_encode(t, text.data, text.n, &ids);
    for (size_t i = 0; i < ids.n; i++)
        WEIR_ASSERT(tokenizer_kind(t, ids.data[i]) == TOKEN_TEXT);
    tokenizer_decode(t, ids.data, ids.n, false, &back);
    text_append(&back, NULL, 0);
    WEIR_ASSERT(back.n == whole.n && memcmp(back.data, whole.data, back.n) == 0);
    ids_free(&ids);
    text_free(&text);
    text_free(&whole);
    text_free(&pieces);
    text_free(&back);
    return 0;
}
