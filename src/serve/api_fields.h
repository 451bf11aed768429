/* api_fields.h: one typed field of a request object: its type rule, its range, its refusal.
 * A missing field and null are the same: *given is false and *out keeps the default. Integer fields
 * refuse 1.5, "7" and true; number fields refuse strings; bools refuse 0 and 1. */
#ifndef WEIR_SERVE_API_FIELDS_H
#define WEIR_SERVE_API_FIELDS_H

#include "serve/api_error.h"

/* Where fields are read: `at` is the dotted path of the object, "" for the body itself. */
struct api_fields {
    const json_t *object;
    const char *at;
    struct api_error *error;
};

/* The value, or NULL when missing or null. */
const json_t *api_get(const struct api_fields *f, const char *name);
struct api_path api_field_path(const struct api_fields *f, const char *name);

/* All: true when the field is fine or not given. `given` may be NULL. */
bool api_bool(const struct api_fields *f, const char *name, bool *out);
bool api_int(const struct api_fields *f, const char *name, int64_t low, int64_t high, int64_t *out,
             bool *given);
/* low <= x <= high; with `open_low`, low < x. */
bool api_number(const struct api_fields *f, const char *name, double low, bool open_low,
                double high, double *out, bool *given);
/* Borrowed from the JSON value; *bytes may be NULL, then a NUL inside the text is refused. */
bool api_string(const struct api_fields *f, const char *name, const char **out, size_t *bytes);
bool api_object(const struct api_fields *f, const char *name, const json_t **out);
/* An array of token ids, each in 0..vocab-1, at most `most` of them, appended to *out. */
bool api_ids(const struct api_fields *f, const char *name, uint32_t vocab, size_t most,
             struct ids *out);
/* The same for an array that is at hand; `path` names it. */
bool api_value_ids(const json_t *array, const char *path, uint32_t vocab, size_t most,
                   struct ids *out, struct api_error *e);

/* The field must be missing, null or `neutral` (a JSON text such as "false"); else `status` with
 * the reason. */
bool api_refused(const struct api_fields *f, const char *name, const json_t *neutral, int status,
                 const char *reason);

#endif
