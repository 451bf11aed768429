/* json_write.h: appends JSON values to a byte string. Small on purpose: replies are written by hand
 * around a constant head, so that a streamed token costs one escaped string. */
#ifndef WEIR_SERVE_JSON_WRITE_H
#define WEIR_SERVE_JSON_WRITE_H

#include "text/tokenizer.h"

/* A quoted string. Bytes that are not UTF-8 are written as U+FFFD, so that output is always valid;
 * non-ASCII stays raw. */
void json_put_string(struct text *out, const char *s, size_t n);
void json_put_int(struct text *out, int64_t value);
/* The shortest spelling that reads back as the same value; finite values only. */
void json_put_double(struct text *out, double value);
void json_put_float(struct text *out, float value);
void json_put_bool(struct text *out, bool value);
/* [1,2,3] */
void json_put_ids(struct text *out, const int32_t *ids, size_t n);
/* [240,159] : the bytes of a token. */
void json_put_bytes(struct text *out, const char *s, size_t n);

#endif
