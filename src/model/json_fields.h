/* json_fields.h: reads numbers, flags and words out of a JSON object with one clear sentence for
 * each way they can be wrong. Called by the model description and by the loader. */
#ifndef WEIR_MODEL_JSON_FIELDS_H
#define WEIR_MODEL_JSON_FIELDS_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses `text`; a name that stands twice in one object is refused and named, never "the last one
 * wins". WEIR_BAD_FILE. The result is the caller's. */
weir_status json_text_parse(const char *text, size_t bytes, const char *path, json_t **out,
                            weir_error *err);

/* Where fields are looked for: in `first`, then in `second` (either may be NULL). The first failure
 * is kept in *err and `status`; later calls then return their fallback and change nothing, so that
 * a caller reads all fields in a row and asks once. */
struct json_fields {
    const json_t *first, *second;
    const char *scope; /* put before every field name in messages: "" or "linear_attn_config." */
    const char *path;
    weir_error *err;
    weir_status status;
};

/* NULL where the field is absent or null. */
const json_t *json_field(const struct json_fields *f, const char *name);
/* An integer in [low, high]. Strings, floats and booleans are refused. Absent: a failure where
 * `required`, else `fallback`. */
int64_t json_field_integer(struct json_fields *f, const char *name, bool required, int64_t fallback,
                           int64_t low, int64_t high);
/* A finite number in [low, high]. */
double json_field_number(struct json_fields *f, const char *name, bool required, double fallback,
                         double low, double high);
bool json_field_bool(struct json_fields *f, const char *name, bool fallback);
/* NULL where absent and not required. The string lives as long as the JSON. */
const char *json_field_string(struct json_fields *f, const char *name, bool required);
/* The object, NULL where absent and not required. */
const json_t *json_field_object(struct json_fields *f, const char *name, bool required);
/* Records a failure of `name` with its value: "field NAME: RULE, not VALUE". */
void json_field_refuse(struct json_fields *f, const char *name, const json_t *value,
                       weir_status code, const char *rule, ...)
    __attribute__((format(printf, 5, 6)));

#endif
