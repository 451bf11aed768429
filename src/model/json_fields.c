/* json_fields.c: checked reading of JSON. Invariant that bites: jansson silently converts nothing,
 * but json_integer_value of a string is 0, so every value passes a type check here first. */
#include "model/json_fields.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* The key that ends at byte `end` of `text` (just behind its closing quote), as written. */
static void key_before(const char *text, size_t end, char *out, size_t cap) {
    out[0] = 0;
    if (end < 2 || text[end - 1] != '"')
        return;
    size_t close = end - 1, open = close;
    while (open > 0) {
        open--;
        if (text[open] != '"')
            continue;
        size_t slashes = 0;
        while (slashes < open && text[open - 1 - slashes] == '\\')
            slashes++;
        if (slashes % 2 == 0)
            break;
    }
    if (text[open] != '"')
        return;
    snprintf(out, cap, "%.*s", (int)(close - open - 1 < cap ? close - open - 1 : cap - 1),
             text + open + 1);
}

weir_status json_text_parse(const char *text, size_t bytes, const char *path, json_t **out,
                            weir_error *err) {
    json_error_t fault;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault);
    if (*out)
        return WEIR_OK;
    enum json_error_code code = json_error_code(&fault);
    /* Where memory runs out between two values, jansson leaves no code and no text at all. */
    if (code == json_error_out_of_memory || !fault.text[0])
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory to parse %zu bytes of JSON", bytes);
    if (code == json_error_duplicate_key) {
        char key[256];
        key_before(text, fault.position > 0 ? (size_t)fault.position : 0, key, sizeof key);
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "the name \"%s\" stands twice in one JSON object (line %d)", key,
                         fault.line);
    }
    return weir_fail(err, WEIR_BAD_FILE, path, "is not valid JSON: line %d, column %d: %s",
                     fault.line, fault.column, fault.text);
}

const json_t *json_field(const struct json_fields *f, const char *name) {
    const json_t *v = f->first ? json_object_get(f->first, name) : NULL;
    if (!v || json_is_null(v))
        v = f->second ? json_object_get(f->second, name) : NULL;
    return v && !json_is_null(v) ? v : NULL;
}

/* `value` as JSON, cut to a length that leaves room for the sentence around it. */
static void show(const json_t *value, char *out, size_t cap) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text && strlen(text) >= cap)
        snprintf(out, cap, "%.*s...", (int)cap - 4, text);
    else
        snprintf(out, cap, "%s", text ? text : "?");
    free(text);
}

void json_field_refuse(struct json_fields *f, const char *name, const json_t *value,
                       weir_status code, const char *rule, ...) {
    if (f->status)
        return;
    char text[320], shown[100] = "";
    va_list ap;
    va_start(ap, rule);
    vsnprintf(text, sizeof text, rule, ap);
    va_end(ap);
    if (value)
        show(value, shown, sizeof shown);
    f->status = weir_fail(f->err, code, f->path, "field %s%s: %s%s%s", f->scope, name, text,
                          value ? ", not " : "", shown);
}

static const json_t *wanted(struct json_fields *f, const char *name, bool required) {
    if (f->status)
        return NULL;
    const json_t *v = json_field(f, name);
    if (!v && required)
        json_field_refuse(f, name, NULL, WEIR_BAD_FILE, "is missing");
    return v;
}

int64_t json_field_integer(struct json_fields *f, const char *name, bool required, int64_t fallback,
                           int64_t low, int64_t high) {
    const json_t *v = wanted(f, name, required);
    if (!v)
        return fallback;
    if (json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high)
        return json_integer_value(v);
    json_field_refuse(f, name, v, WEIR_BAD_FILE, "must be an integer from %" PRId64 " to %" PRId64,
                      low, high);
    return fallback;
}

double json_field_number(struct json_fields *f, const char *name, bool required, double fallback,
                         double low, double high) {
    const json_t *v = wanted(f, name, required);
    if (!v)
        return fallback;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (x >= low && x <= high)
        return x;
    json_field_refuse(f, name, v, WEIR_BAD_FILE, "must be a number from %g to %g", low, high);
    return fallback;
}

bool json_field_bool(struct json_fields *f, const char *name, bool fallback) {
    const json_t *v = wanted(f, name, false);
    if (!v)
        return fallback;
    if (json_is_boolean(v))
        return json_is_true(v);
    json_field_refuse(f, name, v, WEIR_BAD_FILE, "must be true or false");
    return fallback;
}

const char *json_field_string(struct json_fields *f, const char *name, bool required) {
    const json_t *v = wanted(f, name, required);
    if (!v)
        return NULL;
    if (json_is_string(v))
        return json_string_value(v);
    json_field_refuse(f, name, v, WEIR_BAD_FILE, "must be a string");
    return NULL;
}

const json_t *json_field_object(struct json_fields *f, const char *name, bool required) {
    const json_t *v = wanted(f, name, required);
    if (!v)
        return NULL;
    if (json_is_object(v))
        return v;
    json_field_refuse(f, name, v, WEIR_BAD_FILE, "must be an object");
    return NULL;
}
