/* fuzz_http.c: any bytes to the request parser, once in one piece and once in pieces whose lengths
 * are drawn from the input: both must come to the same requests, bodies and faults. */
#include "base/rng.h"
#include "serve/http_parse.h"

#include <stdlib.h>
#include <string.h>

static const struct http_limits limits = {
    .line_bytes = 200, .header_bytes = 500, .fields = 8, .body_bytes = 300};

static uint64_t add(uint64_t sum, const void *bytes, size_t n) {
    const unsigned char *s = bytes;
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ s[i]) * 0x100000001B3u;
    return rng_mix(sum ^ n);
}

static uint64_t add_text(uint64_t sum, const char *s) {
    return add(sum, s, strlen(s));
}

static uint64_t add_head(uint64_t sum, const struct http_parser *p) {
    sum = add_text(sum, http_parser_method(p));
    sum = add_text(sum, p->path);
    sum = add_text(sum, http_parser_query(p));
    sum = add(sum, &p->content_length, sizeof p->content_length);
    const bool flags[] = {p->keep_alive, p->expects_continue, p->chunked, p->has_body};
    sum = add(sum, flags, sizeof flags);
    for (uint32_t i = 0; i < p->n_fields; i++) {
        sum = add_text(sum, http_parser_header(p, i).name);
        sum = add_text(sum, http_parser_header(p, i).value);
    }
    /* What a router relies on. */
    if (p->path[0] != '/' && strcmp(p->path, "*") != 0)
        abort();
    if (strstr(p->path, "//") || strstr(p->path, "/../") || strstr(p->path, "/./"))
        abort();
    return sum;
}

/* A digest of everything the bytes came to. */
static uint64_t run(const uint8_t *data, size_t n, bool in_pieces) {
    struct http_parser p;
    uint64_t sum = 0, draws = 0;
    uint64_t seed = add(1, data, n);
    http_parser_open(&p, &limits);
    for (size_t at = 0; at < n;) {
        size_t piece = n - at, taken;
        if (in_pieces) {
            size_t drawn = 1 + rng_at(seed, 0, draws++) % 9;
            piece = drawn < piece ? drawn : piece;
        }
        enum http_parse_result r = http_parse(&p, (const char *)data + at, piece, &taken);
        at += taken;
        if (taken > piece || p.body_bytes > limits.body_bytes)
            abort();
        if (r == HTTP_PARSE_HEAD) {
            sum = add_head(sum, &p);
            r = http_parse(&p, NULL, 0, &taken); /* tells whether a body follows */
        }
        if (r == HTTP_PARSE_DONE) {
            sum = add(sum, p.body ? p.body : "", p.body_bytes);
            http_parser_reset(&p);
        } else if (r == HTTP_PARSE_BAD) {
            sum = add_text(sum, p.fault);
            sum = add(sum, &p.status, sizeof p.status);
            sum = add(sum, &at, sizeof at);
            break;
        }
    }
    http_parser_reset(&p);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (run(data, n, false) != run(data, n, true))
        abort();
    return 0;
}
