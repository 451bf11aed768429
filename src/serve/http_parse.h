/* http_parse.h: a strict HTTP/1.1 request parser that takes its bytes in pieces of any size.
 * Knows no sockets; called by the connection and by the fuzz target. The result does not depend on
 * how the bytes were cut. */
#ifndef WEIR_SERVE_HTTP_PARSE_H
#define WEIR_SERVE_HTTP_PARSE_H

#include "serve/http.h"

struct http_limits {
    size_t line_bytes;   /* request line */
    size_t header_bytes; /* all fields together */
    uint32_t fields;
    size_t body_bytes;
};

enum http_parse_result {
    HTTP_PARSE_MORE, /* all bytes were taken, more are needed */
    HTTP_PARSE_HEAD, /* the header is complete; told once, before any byte of the body is taken */
    HTTP_PARSE_DONE, /* the request is complete; the bytes that follow belong to the next one */
    HTTP_PARSE_BAD,  /* see status and fault; the connection is out of step and must be closed */
};

struct http_field {
    uint32_t name, value; /* offsets into text */
};

struct http_parser {
    const struct http_limits *limits;
    int state;
    bool after_cr;
    unsigned blank_lines;

    char *text; /* request line and fields, NUL-terminated in place */
    size_t text_bytes, text_space, line_start;
    struct http_field *fields;
    uint32_t n_fields, fields_space;
    size_t fields_bytes;

    /* After HTTP_PARSE_HEAD. */
    enum http_method method;
    unsigned minor; /* HTTP/1.minor */
    char *path;     /* normalised */
    uint32_t method_at, query_at;
    bool keep_alive, expects_continue, chunked, has_body;
    uint64_t content_length;

    char *body; /* after HTTP_PARSE_DONE: body_bytes and a NUL; may be taken (set it to NULL) */
    size_t body_bytes, body_space;
    uint64_t chunk_left;
    unsigned chunk_digits;
    size_t chunk_extra; /* bytes of chunk extensions and trailers so far */

    int status; /* of HTTP_PARSE_BAD: 400, 413, 417, 431, 503 */
    const char *fault;
};

void http_parser_open(struct http_parser *p, const struct http_limits *limits);
/* Back to the start of a request; frees what the last one held. */
void http_parser_reset(struct http_parser *p);
/* Takes up to n bytes; *taken says how many. */
enum http_parse_result http_parse(struct http_parser *p, const char *bytes, size_t n,
                                  size_t *taken);
/* True as long as no byte of a request has come. */
bool http_parser_idle(const struct http_parser *p);
/* After HTTP_PARSE_HEAD: i-th field, and the method as sent. */
struct http_header http_parser_header(const struct http_parser *p, uint32_t i);
const char *http_parser_method(const struct http_parser *p);
const char *http_parser_query(const struct http_parser *p);

#endif
