/* auth.c: key check. Called by http_route.c for every request before its body is read. Digests have
 * one length, so a comparison in constant time says nothing about where or how long a key differs;
 * all keys are looked at, so neither does the number of comparisons. */
#include "serve/auth.h"

#include "base/file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#include <strings.h>

static weir_status check_form(const char *where, const char *key, size_t n, weir_error *err) {
    if (n == 0)
        return weir_fail(err, WEIR_BAD_VALUE, where, "a key must not be empty");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] <= 0x20 || (unsigned char)key[i] >= 0x7F)
            return weir_fail(err, WEIR_BAD_VALUE, where,
                             "a key must consist of visible ASCII characters");
    return WEIR_OK;
}

static weir_status add(struct auth *a, const char *where, const char *key, size_t n,
                       weir_error *err) {
    weir_status status = check_form(where, key, n, err);
    if (status != WEIR_OK)
        return status;
    void *keys = realloc(a->keys, (a->n_keys + 1) * sizeof *a->keys);
    if (!keys)
        return weir_fail(err, WEIR_NO_MEMORY, where, "no memory for the keys");
    a->keys = keys;
    SHA256((const unsigned char *)key, n, a->keys[a->n_keys++]);
    return WEIR_OK;
}

static weir_status add_file(struct auth *a, const char *path, weir_error *err) {
    char *text;
    size_t bytes;
    weir_status status = file_read(path, 1 << 20, &text, &bytes, err);
    if (status != WEIR_OK)
        return status;
    for (size_t i = 0; i < bytes && status == WEIR_OK;) {
        size_t n = 0;
        while (i + n < bytes && text[i + n] != '\n')
            n++;
        size_t length = n > 0 && text[i + n - 1] == '\r' ? n - 1 : n;
        if (length > 0 && text[i] != '#')
            status = add(a, path, text + i, length, err);
        i += n + 1;
    }
    OPENSSL_cleanse(text, bytes);
    free(text);
    /* A file without keys must not open the server to everybody. */
    if (status == WEIR_OK && a->n_keys == 0)
        status = weir_fail(err, WEIR_BAD_FILE, path, "holds no key");
    return status;
}

weir_status auth_open(struct auth *a, const char *const *keys, size_t n_keys, const char *file,
                      const char *admin_key, weir_error *err) {
    memset(a, 0, sizeof *a);
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < n_keys && status == WEIR_OK; i++)
        status = add(a, "--api-key", keys[i], strlen(keys[i]), err);
    if (status == WEIR_OK && file)
        status = add_file(a, file, err);
    if (status == WEIR_OK && admin_key) {
        status = check_form("--admin-key", admin_key, strlen(admin_key), err);
        SHA256((const unsigned char *)admin_key, strlen(admin_key), a->admin);
        a->has_admin = true;
    }
    if (status != WEIR_OK)
        auth_close(a);
    return status;
}

void auth_close(struct auth *a) {
    free(a->keys);
    memset(a, 0, sizeof *a);
}

struct auth_result auth_check(const struct auth *a, const char *authorization) {
    struct auth_result result = {.may_use = a->n_keys == 0};
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return result;
    const char *key = authorization + 7 + strspn(authorization + 7, " ");
    SHA256((const unsigned char *)key, strlen(key), result.digest);
    unsigned matches = 0;
    for (size_t i = 0; i < a->n_keys; i++)
        matches |= CRYPTO_memcmp(a->keys[i], result.digest, AUTH_DIGEST_BYTES) == 0;
    result.is_admin = CRYPTO_memcmp(a->admin, result.digest, AUTH_DIGEST_BYTES) == 0;
    result.is_admin &= a->has_admin;
    result.has_key = matches | result.is_admin;
    result.may_use |= result.has_key;
    return result;
}
