/* remote_address.c: the remote store's address. Called once, when the tier is opened.
 * Invariant that bites: whatever stands before the last '@' is a secret, even in an address that
 * makes no sense, so no message quotes it. */
#include "cache/remote_address.h"

#include <stdbool.h>
#include <string.h>

static const char FIELD[] = "remote_store";

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* [from, end) without its percent signs. False: does not fit, or a bad escape, or a zero byte. */
static bool decode(char *out, size_t room, const char *from, const char *end) {
    size_t n = 0;
    while (from < end) {
        char c = *from++;
        if (c == '%') {
            const int high = end - from >= 2 ? hex_digit(from[0]) : -1;
            const int low = high >= 0 ? hex_digit(from[1]) : -1;
            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            from += 2;
        }
        if (c == '\0' || n + 1 >= room)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

static bool take(char *out, size_t room, const char *from, const char *end) {
    const size_t n = (size_t)(end - from);
    if (n + 1 > room)
        return false;
    memcpy(out, from, n);
    out[n] = '\0';
    return true;
}

/* A decimal number of at most `most`, without sign or leading zeros beyond "0". */
static bool number(const char *text, unsigned long most) {
    const size_t n = strlen(text);
    if (n == 0 || n > 5 || strspn(text, "0123456789") != n || (n > 1 && text[0] == '0'))
        return false;
    return strtoul(text, NULL, 10) <= most;
}

static weir_status read_login(struct remote_address *a, const char *from, const char *at,
                              weir_error *err) {
    const char *colon = memchr(from, ':', (size_t)(at - from));
    if (!colon)
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "a ':' must stand before the password, as in redis://:PASSWORD@HOST");
    if (!decode(a->user, sizeof a->user, from, colon) ||
        !decode(a->password, sizeof a->password, colon + 1, at))
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "user and password: at most %zu and %zu bytes, '%%' only before two "
                         "hexadecimal digits",
                         sizeof a->user - 1, sizeof a->password - 1);
    if (a->password[0] == '\0')
        return weir_fail(err, WEIR_BAD_VALUE, FIELD, "the password before '@' is empty");
    return WEIR_OK;
}

/* HOST[:PORT] or [IPV6][:PORT]; `end` is the first '/' or the end of the text. */
static weir_status read_host(struct remote_address *a, const char *from, const char *end,
                             weir_error *err) {
    const char *host_end, *rest;
    if (from < end && *from == '[') {
        from++;
        host_end = from + strcspn(from, "]/");
        if (*host_end != ']')
            return weir_fail(err, WEIR_BAD_VALUE, FIELD, "host \"[%.*s\" lacks its ']'",
                             (int)(end - from), from);
        rest = host_end + 1;
    } else {
        rest = host_end = from + strcspn(from, ":/");
    }
    if (host_end == from || !take(a->host, sizeof a->host, from, host_end) ||
        strpbrk(a->host, " \t\r\n?#"))
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "host must be 1 to %zu characters, as in redis://HOST:PORT",
                         sizeof a->host - 1);
    if (rest == end)
        memcpy(a->port, "6379", 5);
    else if (*rest != ':' || !take(a->port, sizeof a->port, rest + 1, end) ||
             !number(a->port, 65535) || a->port[0] == '0')
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "\"%.*s\" behind the host must be ':' and a port from 1 to 65535 (IPv6 "
                         "addresses stand in brackets)",
                         (int)(end - rest), rest);
    return WEIR_OK;
}

weir_status remote_address_read(struct remote_address *out, const char *url, weir_error *err) {
    *out = (struct remote_address){0};
    const char *at = strrchr(url, '@');
    if (strncmp(url, "rediss://", 9) == 0)
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "rediss:// (TLS) is not built in: use redis:// through a tunnel");
    if (strncmp(url, "redis://", 8) != 0)
        return weir_fail(err, WEIR_BAD_VALUE, FIELD,
                         "\"%s\" must read redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]",
                         at ? at + 1 : url);
    const char *from = url + 8;
    weir_status s = at ? read_login(out, from, at, err) : WEIR_OK;
    if (at)
        from = at + 1;
    const char *slash = strchr(from, '/');
    if (s == WEIR_OK)
        s = read_host(out, from, slash ? slash : from + strlen(from), err);
    if (s == WEIR_OK && slash && slash[1] != '\0') {
        if (!take(out->db, sizeof out->db, slash + 1, slash + strlen(slash)) ||
            !number(out->db, 65535))
            s = weir_fail(err, WEIR_BAD_VALUE, FIELD,
                          "database \"%s\" must be a number from 0 to 65535", slash + 1);
    }
    if (s != WEIR_OK) {
        explicit_bzero(out, sizeof *out);
        return s;
    }
    const bool six = strchr(out->host, ':') != NULL;
    snprintf(out->label, sizeof out->label, "redis://%s%s%s:%s%s%s", six ? "[" : "", out->host,
             six ? "]" : "", out->port, out->db[0] ? "/" : "", out->db);
    return WEIR_OK;
}
