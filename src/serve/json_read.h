/* json_read.h: the JSON of an untrusted body, with the limits of the API in front of the reader of
 * text/jsontext.h. */
#ifndef WEIR_SERVE_JSON_READ_H
#define WEIR_SERVE_JSON_READ_H

#include "serve/api_error.h"
#include "text/jsontext.h"

enum {
    JSON_READ_DEPTH = 64,
    /* Bounds the memory of a small body full of empty arrays: as a tree an id of a prompt takes
     * some 40 bytes, an array or object four times that, so these count four. */
    JSON_READ_VALUES = 1200000,
    JSON_READ_CONTAINER = 4,
};

/* Parses one JSON object of `n` bytes; `numbers` as in jsontext_read. A number that is not finite
 * as a double arrives as +-DBL_MAX. On failure NULL, and *e is a 400 naming the place. */
json_t *json_read_object(const char *s, size_t n, struct jsontext_numbers *numbers,
                         struct api_error *e);

#endif
