/* http_error.c: the error object of the API. Called by handlers and by the transport. Messages may
 * quote what a client sent, so they are cut, cleaned and escaped here, in one place. */
#include "serve/http_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGE = 2000, MAX_PARAM = 256 };

static const char *type_of(int status) {
    switch (status) {
    case 401: return "AuthenticationError";
    case 403: return "PermissionDeniedError";
    case 404: return "NotFoundError";
    case 429: return "RateLimitError";
    case 501: return "NotImplementedError";
    case 503: return "ServiceUnavailableError";
    case 504: return "TimeoutError";
    default: return status >= 500 ? "InternalServerError" : "BadRequestError";
    }
}

/* Length of the well-formed UTF-8 sequence at s (n bytes left), 0 when there is none. */
static size_t sequence(const unsigned char *s, size_t n) {
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xED && s[1] >= 0xA0;
    bool beyond = s[0] == 0xF4 && s[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

/* Appends `text` as a JSON string, at most `limit` bytes of it; at most 6 bytes come out per byte.
 * A broken sequence becomes U+FFFD. */
static char *quote(char *out, const char *text, size_t limit) {
    const unsigned char *s = (const unsigned char *)text;
    size_t n = strlen(text), i = 0;
    *out++ = '"';
    while (i < n) {
        size_t length = sequence(s + i, n - i);
        if (i + (length ? length : 1) > limit)
            break;
        if (length == 0) {
            out = stpcpy(out, "\xEF\xBF\xBD");
            i++;
        } else if (s[i] == '"' || s[i] == '\\') {
            *out++ = '\\';
            *out++ = text[i++];
        } else if (s[i] < 0x20 || s[i] == 0x7F) {
            out += sprintf(out, "\\u%04x", s[i]);
            i++;
        } else {
            memcpy(out, s + i, length);
            out += length;
            i += length;
        }
    }
    *out++ = '"';
    return out;
}

char *http_error_json(int status, const char *param, const char *message) {
    char *json = malloc(6 * (MAX_MESSAGE + MAX_PARAM) + 256);
    if (!json)
        return NULL;
    char *out = stpcpy(json, "{\"error\":{\"message\":");
    /* Escapes make text longer: quotes that fill the message shrink its limit. */
    size_t limit = MAX_MESSAGE;
    char *end = quote(out, message, limit);
    while (end - out > 6000)
        end = quote(out, message, limit /= 2);
    out = end;
    out += sprintf(out, ",\"type\":\"%s\",\"param\":", type_of(status));
    out = param ? quote(out, param, MAX_PARAM) : stpcpy(out, "null");
    sprintf(out, ",\"code\":%d}}", status);
    return json;
}

static char *format_error(int status, const char *param, const char *format, va_list args) {
    char message[MAX_MESSAGE + 8]; /* longer, so that its own cut lies behind the one of quote */
    vsnprintf(message, sizeof message, format, args);
    return http_error_json(status, param, message);
}

void http_reply_error(struct http_reply *r, int status, const char *param, const char *format,
                      ...) {
    va_list args;
    va_start(args, format);
    char *json = format_error(status, param, format, args);
    va_end(args);
    http_reply_json(r, json ? status : 503, json ? json : "", json ? strlen(json) : 0);
    free(json);
}

void http_stream_fail(struct http_reply *r, int status, const char *param, const char *format,
                      ...) {
    va_list args;
    va_start(args, format);
    char *json = format_error(status, param, format, args);
    va_end(args);
    if (!http_stream_started(r)) {
        http_reply_json(r, json ? status : 503, json ? json : "", json ? strlen(json) : 0);
    } else {
        if (json)
            http_stream_send(r, json, strlen(json));
        stream_close(r, status);
    }
    free(json);
}
