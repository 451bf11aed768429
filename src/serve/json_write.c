/* json_write.c: the JSON encoder of replies and events. Called for every token sent; allocates only
 * through the growing text. Invariant that bites: whatever bytes come in, what goes out is valid
 * UTF-8 on one line. */
#include "serve/json_write.h"

#include "text/jsontext.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

void json_put_string(struct text *out, const char *s, size_t n) {
    text_append(out, "\"", 1);
    if (utf8_valid(s, n)) {
        jsontext_escape(out, s, n);
    } else {
        struct utf8_stream stream = {0};
        struct text clean = {0};
        utf8_push(&stream, s, n, &clean);
        utf8_finish(&stream, &clean);
        jsontext_escape(out, clean.data, clean.n);
        text_free(&clean);
    }
    text_append(out, "\"", 1);
}

void json_put_int(struct text *out, int64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value);
    text_append(out, digits, (size_t)n);
}

static void put_shortest(struct text *out, double value, bool single) {
    char digits[40];
    int n = 0;
    int most = single ? 9 : 17;
    for (int precision = single ? 6 : 15; precision <= most; precision++) {
        n = snprintf(digits, sizeof digits, "%.*g", precision, value);
        double back = strtod(digits, NULL);
        if (single ? (float)back == (float)value : back == value)
            break;
    }
    text_append(out, digits, (size_t)n);
    if (!strpbrk(digits, ".en"))
        text_append(out, ".0", 2);
}

void json_put_double(struct text *out, double value) {
    put_shortest(out, value, false);
}

void json_put_float(struct text *out, float value) {
    put_shortest(out, (double)value, true);
}

void json_put_bool(struct text *out, bool value) {
    text_puts(out, value ? "true" : "false");
}

void json_put_ids(struct text *out, const int32_t *ids, size_t n) {
    text_append(out, "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (i)
            text_append(out, ",", 1);
        json_put_int(out, ids[i]);
    }
    text_append(out, "]", 1);
}

void json_put_bytes(struct text *out, const char *s, size_t n) {
    text_append(out, "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (i)
            text_append(out, ",", 1);
        json_put_int(out, (unsigned char)s[i]);
    }
    text_append(out, "]", 1);
}
