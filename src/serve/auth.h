/* auth.h: API keys, kept and compared as SHA-256 digests only. */
#ifndef WEIR_SERVE_AUTH_H
#define WEIR_SERVE_AUTH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { AUTH_DIGEST_BYTES = 32 };

struct auth {
    unsigned char (*keys)[AUTH_DIGEST_BYTES];
    size_t n_keys; /* 0: everybody may use the API */
    bool has_admin;
    unsigned char admin[AUTH_DIGEST_BYTES];
};

/* What an Authorization header is worth. */
struct auth_result {
    bool may_use, is_admin;
    bool has_key; /* digest is that of a known key */
    unsigned char digest[AUTH_DIGEST_BYTES];
};

/* `file` (may be NULL) holds one key a line; empty lines and lines that begin with '#' are skipped.
 * WEIR_BAD_VALUE for an empty key or one with spaces or control characters, WEIR_BAD_FILE for the
 * file. No message ever holds a key. */
weir_status auth_open(struct auth *a, const char *const *keys, size_t n_keys, const char *file,
                      const char *admin_key, weir_error *err);
void auth_close(struct auth *a);

/* `authorization` is the field's value or NULL. Takes the same time whichever key is right. */
struct auth_result auth_check(const struct auth *a, const char *authorization);

#endif
