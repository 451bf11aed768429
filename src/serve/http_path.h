/* http_path.h: from a request target to the one spelling that routes and key checks look at. */
#ifndef WEIR_SERVE_HTTP_PATH_H
#define WEIR_SERVE_HTTP_PATH_H

#include <stddef.h>

/* Percent-decodes target[0..n) up to '?', drops empty and '.' segments, lets '..' remove its
 * predecessor (never the root) and the slash at the end. `out` needs n + 2 bytes. Returns NULL, or
 * what is wrong with the target. *query_at is the offset behind '?', n when there is none. */
const char *http_path_normalise(const char *target, size_t n, char *out, size_t *query_at);

#endif
