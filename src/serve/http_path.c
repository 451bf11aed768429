/* http_path.c: path normalisation. Called by the parser before anything looks at a path: a check on
 * another spelling than the one that is routed is how //v1/.. and %2e get past a key check.
 * Decoding comes first, so an encoded slash separates segments like a plain one; it happens once,
 * so %252e stays the three characters %2e. */
#include "serve/http_path.h"

#include <string.h>

static int hex(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

const char *http_path_normalise(const char *target, size_t n, char *out, size_t *query_at) {
    if (n == 0 || target[0] != '/')
        return "the request target must begin with '/'";
    size_t end = n;
    for (size_t i = 0; i < n; i++)
        if (target[i] == '?') {
            end = i;
            break;
        }
    *query_at = end < n ? end + 1 : n;

    size_t used = 0; /* out[0..used) is a run of "/segment" */
    size_t i = 0;
    while (i < end) {
        /* One segment: everything up to the next slash, plain or encoded. */
        size_t start = used;
        out[used++] = '/';
        for (; i < end; i++) {
            int c = (unsigned char)target[i];
            if (c == '%') {
                int high = i + 2 < end ? hex(target[i + 1]) : -1;
                int low = i + 2 < end ? hex(target[i + 2]) : -1;
                if (high < 0 || low < 0)
                    return "the request target holds a '%' without two hexadecimal digits";
                c = high * 16 + low;
                if (c == 0)
                    return "the request target holds an encoded NUL";
                i += 2;
            }
            if (c == '/') {
                i++;
                break;
            }
            out[used++] = (char)c;
        }
        size_t length = used - start - 1;
        if (length == 0 || (length == 1 && out[start + 1] == '.')) {
            used = start;
        } else if (length == 2 && out[start + 1] == '.' && out[start + 2] == '.') {
            used = start;
            while (used > 0 && out[--used] != '/')
                continue;
        }
    }
    if (used == 0)
        out[used++] = '/';
    out[used] = 0;
    return NULL;
}
