/* api_error.c: builds refusals. Called by every parser and handler of the API; the transport writes
 * them. Invariant that bites: client text reaches these messages, so every cut is made at a
 * character border. */
#include "serve/api_error.h"

#include "serve/json_write.h"
#include "text/jsontext.h"

#include <stdarg.h>
#include <string.h>

/* Largest length <= n that does not end inside a character. */
static size_t char_border(const char *s, size_t n) {
    while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static void format_cut(char *out, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void format_cut(char *out, size_t size, const char *format, va_list args) {
    int n = vsnprintf(out, size, format, args);
    if (n >= (int)size) {
        /* vsnprintf cut after size-1 bytes; a continuation byte may have lost its character. */
        size_t end = size - 1;
        while (end > 0 && ((unsigned char)out[end - 1] & 0xC0) == 0x80)
            end--;
        if (end > 0 && ((unsigned char)out[end - 1] & 0xC0) == 0xC0)
            end--;
        out[end] = 0;
    }
}

bool api_fail(struct api_error *e, int status, const char *param, const char *format, ...) {
    e->status = status;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    format_cut(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

static int status_of(weir_status code) {
    switch (code) {
    case WEIR_OK:
    case WEIR_BAD_FILE:
    case WEIR_NO_MEMORY:
    case WEIR_NO_TOKEN: return 500;
    case WEIR_BAD_VALUE:
    case WEIR_BAD_ID:
    case WEIR_TOO_LONG: return 400;
    case WEIR_BUSY: return 429;
    case WEIR_CLOSED: return 503;
    case WEIR_UNSUPPORTED: return 501;
    }
    return 500;
}

bool api_fail_weir(struct api_error *e, const char *param, const weir_error *from) {
    const char *where = param ? param : from->where;
    if (!where[0])
        return api_fail(e, status_of(from->code), NULL, "%s", from->message);
    return api_fail(e, status_of(from->code), where, "%s: %s", where, from->message);
}

struct api_path api_path(const char *format, ...) {
    struct api_path p;
    va_list args;
    va_start(args, format);
    format_cut(p.text, sizeof p.text, format, args);
    va_end(args);
    return p;
}

static struct api_shown cut(const char *s, size_t n) {
    struct api_shown shown;
    size_t bytes = 0;
    for (size_t chars = 0; bytes < n && chars < API_SHOWN_CHARS; chars++) {
        bytes++;
        while (bytes < n && ((unsigned char)s[bytes] & 0xC0) == 0x80)
            bytes++;
    }
    /* Only malformed text has more than four bytes a character. */
    if (bytes > API_SHOWN_CHARS * 4)
        bytes = char_border(s, API_SHOWN_CHARS * 4);
    memcpy(shown.text, s, bytes);
    memcpy(shown.text + bytes, bytes < n ? "..." : "", bytes < n ? 4 : 1);
    return shown;
}

/* Writes the head of a value: a huge array must not be printed whole only to be cut. */
static void show_value(const json_t *v, struct text *out, unsigned depth) {
    if (out->n > API_SHOWN_CHARS * 4)
        return;
    switch (json_typeof(v)) {
    case JSON_OBJECT: {
        const char *key;
        json_t *item;
        bool first = true;
        text_puts(out, "{");
        json_object_foreach(jsontext_loose(v), key, item) {
            if (out->n > API_SHOWN_CHARS * 4 || depth > 3)
                break;
            if (!first)
                text_puts(out, ",");
            first = false;
            json_put_string(out, key, strlen(key));
            text_puts(out, ":");
            show_value(item, out, depth + 1);
        }
        text_puts(out, "}");
        return;
    }
    case JSON_ARRAY:
        text_puts(out, "[");
        for (size_t i = 0; i < json_array_size(v) && out->n <= API_SHOWN_CHARS * 4 && depth <= 3;
             i++) {
            if (i)
                text_puts(out, ",");
            show_value(json_array_get(v, i), out, depth + 1);
        }
        text_puts(out, "]");
        return;
    case JSON_STRING: {
        size_t n = json_string_length(v);
        const char *s = json_string_value(v);
        json_put_string(out, s, n > API_SHOWN_CHARS * 4 ? char_border(s, API_SHOWN_CHARS * 4) : n);
        return;
    }
    case JSON_INTEGER: json_put_int(out, json_integer_value(v)); return;
    case JSON_REAL: json_put_double(out, json_real_value(v)); return;
    case JSON_TRUE: text_puts(out, "true"); return;
    case JSON_FALSE: text_puts(out, "false"); return;
    case JSON_NULL: text_puts(out, "null"); return;
    }
}

struct api_shown api_show(const json_t *value) {
    struct text t = {0};
    if (value)
        show_value(value, &t, 0);
    struct api_shown shown = cut(t.data ? t.data : "", t.n);
    text_free(&t);
    return shown;
}

struct api_found api_found(const json_t *value) {
    struct api_found found = {"is missing"};
    struct api_shown shown = api_show(value);
    if (value)
        snprintf(found.text, sizeof found.text, "%s is not allowed", shown.text);
    return found;
}

struct api_shown api_show_text(const char *s, size_t n) {
    struct text t = {0};
    json_put_string(&t, s, n > API_SHOWN_CHARS * 4 ? char_border(s, API_SHOWN_CHARS * 4) : n);
    struct api_shown shown = cut(t.data, t.n);
    text_free(&t);
    return shown;
}
