/* api_error.h: a refusal as the API tells it: HTTP status, dotted field, one sentence. */
#ifndef WEIR_SERVE_API_ERROR_H
#define WEIR_SERVE_API_ERROR_H

#include "text/tokenizer.h"

#include <jansson.h>

enum { API_SHOWN_CHARS = 200 };

/* Zero-initialise; `status` 0 means no error. */
struct api_error {
    int status;
    char param[192];    /* dotted path of the field, "" for none */
    char message[1536]; /* names field, value (cut to API_SHOWN_CHARS characters) and rule */
};

/* Fills *e and returns false, so that a check reads `return api_fail(e, 400, "n", "...")`. `param`
 * may be NULL. Text that does not fit is cut at a character border. */
bool api_fail(struct api_error *e, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from a failure below; 400 for faults of the request, 429, 501, 503 and 500 for the
 * rest. */
bool api_fail_weir(struct api_error *e, const char *param, const weir_error *from);

/* A field name made of client text stays short and printable inside a path. Returns `out`. */
struct api_path {
    char text[192];
};
struct api_path api_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The value as JSON, cut to API_SHOWN_CHARS characters. */
struct api_shown {
    char text[API_SHOWN_CHARS * 4 + 8];
};
struct api_shown api_show(const json_t *value);
/* "X is not allowed" for a value, "is missing" for NULL: the head of a refusal's sentence. */
struct api_found {
    char text[sizeof(struct api_shown) + sizeof " is not allowed"];
};
struct api_found api_found(const json_t *value);
struct api_shown api_show_text(const char *s, size_t n);

#endif
