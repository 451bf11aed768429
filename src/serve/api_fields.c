/* api_fields.c: the type rules of request fields. Called by all request parsers.
 * Invariant that bites: a refusal names field, value and rule in one sentence, the same everywhere.
 */
#include "serve/api_fields.h"

#include <math.h>
#include <string.h>

const json_t *api_get(const struct api_fields *f, const char *name) {
    const json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

struct api_path api_field_path(const struct api_fields *f, const char *name) {
    return f->at[0] ? api_path("%s.%s", f->at, name) : api_path("%s", name);
}

static bool refuse(const struct api_fields *f, const char *name, const json_t *v,
                   const char *rule) {
    struct api_path path = api_field_path(f, name);
    struct api_shown shown = api_show(v);
    return api_fail(f->error, 400, path.text, "%s: %s is not allowed, %s", path.text, shown.text,
                    rule);
}

bool api_bool(const struct api_fields *f, const char *name, bool *out) {
    const json_t *v = api_get(f, name);
    if (!v)
        return true;
    if (!json_is_boolean(v))
        return refuse(f, name, v, "it must be true or false");
    *out = json_is_true(v);
    return true;
}

bool api_int(const struct api_fields *f, const char *name, int64_t low, int64_t high, int64_t *out,
             bool *given) {
    const json_t *v = api_get(f, name);
    if (given)
        *given = v != NULL;
    if (!v)
        return true;
    if (json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high) {
        *out = json_integer_value(v);
        return true;
    }
    char rule[128];
    if (low == INT64_MIN && high == INT64_MAX)
        snprintf(rule, sizeof rule, "it must be a signed 64-bit integer");
    else if (high == INT64_MAX)
        snprintf(rule, sizeof rule, "it must be an integer of at least %" PRId64, low);
    else
        snprintf(rule, sizeof rule, "it must be an integer from %" PRId64 " to %" PRId64, low,
                 high);
    return refuse(f, name, v, rule);
}

bool api_number(const struct api_fields *f, const char *name, double low, bool open_low,
                double high, double *out, bool *given) {
    const json_t *v = api_get(f, name);
    if (given)
        *given = v != NULL;
    if (!v)
        return true;
    if (json_is_number(v)) {
        double x = json_number_value(v);
        if ((open_low ? x > low : x >= low) && x <= high) {
            *out = x;
            return true;
        }
    }
    char rule[128];
    const char *above = open_low ? "above" : "from";
    if (isinf(high))
        snprintf(rule, sizeof rule, "it must be a finite number %s %g",
                 open_low ? "above" : ">=", low);
    else
        snprintf(rule, sizeof rule, "it must be a number %s %g %s %g", above, low,
                 open_low ? "and up to" : "to", high);
    return refuse(f, name, v, rule);
}

bool api_string(const struct api_fields *f, const char *name, const char **out, size_t *bytes) {
    const json_t *v = api_get(f, name);
    if (!v)
        return true;
    if (!json_is_string(v))
        return refuse(f, name, v, "it must be a string");
    size_t n = json_string_length(v);
    if (!bytes && strlen(json_string_value(v)) != n)
        return refuse(f, name, v, "it must not hold NUL");
    *out = json_string_value(v);
    if (bytes)
        *bytes = n;
    return true;
}

bool api_object(const struct api_fields *f, const char *name, const json_t **out) {
    const json_t *v = api_get(f, name);
    if (v && !json_is_object(v))
        return refuse(f, name, v, "it must be an object");
    if (v)
        *out = v;
    return true;
}

bool api_value_ids(const json_t *array, const char *path, uint32_t vocab, size_t most,
                   struct ids *out, struct api_error *e) {
    if (!json_is_array(array)) {
        struct api_shown shown = api_show(array);
        return api_fail(e, 400, path, "%s: %s is not allowed, it must be an array of token ids",
                        path, shown.text);
    }
    size_t n = json_array_size(array);
    if (n > most)
        return api_fail(e, 400, path, "%s: %zu entries are not allowed, at most %zu", path, n,
                        most);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= (json_int_t)vocab) {
            struct api_path at = api_path("%s.%zu", path, i);
            struct api_shown shown = api_show(v);
            return api_fail(e, 400, at.text,
                            "%s: %s is no token id, it must be an integer from 0 to %" PRIu32
                            " (vocabulary size %" PRIu32 ")",
                            at.text, shown.text, vocab - 1, vocab);
        }
        ids_push(out, (int32_t)json_integer_value(v));
    }
    return true;
}

bool api_ids(const struct api_fields *f, const char *name, uint32_t vocab, size_t most,
             struct ids *out) {
    const json_t *v = api_get(f, name);
    return !v || api_value_ids(v, api_field_path(f, name).text, vocab, most, out, f->error);
}

bool api_refused(const struct api_fields *f, const char *name, const json_t *neutral, int status,
                 const char *reason) {
    const json_t *v = api_get(f, name);
    if (!v || (neutral && json_equal(v, neutral)) ||
        (neutral && json_is_number(v) && json_is_number(neutral) &&
         json_number_value(v) == json_number_value(neutral)))
        return true;
    struct api_path path = api_field_path(f, name);
    struct api_shown shown = api_show(v);
    return api_fail(f->error, status, path.text, "%s: %s is not supported, %s", path.text,
                    shown.text, reason);
}
