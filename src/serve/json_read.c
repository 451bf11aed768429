/* json_read.c: see json_read.h. Called once per request body. Invariant that bites: a value costs
 * some hundred bytes as a tree and three in the body, so values are counted before any is built. */
#include "serve/json_read.h"

/* An upper bound of the values in the text: whatever stands between commas and brackets, with the
 * weight of containers. */
static size_t count_values(const char *s, size_t n) {
    size_t values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else {
            values += c == ',';
            values += c == '[' || c == '{' ? JSON_READ_CONTAINER : 0;
        }
    }
    return values;
}

json_t *json_read_object(const char *s, size_t n, struct jsontext_numbers *numbers,
                         struct api_error *e) {
    *e = (struct api_error){0};
    if (count_values(s, n) > JSON_READ_VALUES) {
        api_fail(e, 400, NULL,
                 "request body: more than %d JSON values (an array or object counts as %d)",
                 JSON_READ_VALUES, JSON_READ_CONTAINER);
        return NULL;
    }
    json_t *value = NULL;
    weir_error err = {0};
    if (jsontext_read(s, n, JSON_READ_DEPTH, "request body", numbers, &value, &err) != WEIR_OK) {
        api_fail(e, err.code == WEIR_NO_MEMORY ? 500 : 400, NULL, "request body: %s", err.message);
        return NULL;
    }
    if (!json_is_object(value)) {
        struct api_shown shown = api_show(value);
        api_fail(e, 400, NULL, "request body: %s is not allowed, it must be a JSON object",
                 shown.text);
        json_decref(value);
        return NULL;
    }
    return value;
}
