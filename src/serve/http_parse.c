/* http_parse.c: the request parser. Called by http_conn.c for every piece of input.
 *
 * Invariant that bites: where this parser and a proxy in front of it disagree about the end of a
 * request, one client can speak for another. So everything with two readings is refused: bare CR or
 * LF, folded fields, a space before the colon, Content-Length next to Transfer-Encoding, either of
 * them twice, codings other than chunked, numbers with signs. All decisions are made byte by byte
 * or line by line, so that the cut of the input cannot change them. */
#include "serve/http_parse.h"
#include "serve/http_path.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum state {
    REQUEST_LINE,
    FIELDS,
    HEAD_DONE,
    BODY_LENGTH,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_DATA,
    CHUNK_END,
    TRAILERS,
    DONE,
    BAD,
};

enum {
    MAX_BLANK_LINES = 4,    /* empty lines before a request line */
    MAX_CHUNK_EXTRA = 65536 /* chunk extensions and trailers of one body */
};

static enum http_parse_result bad(struct http_parser *p, int status, const char *fault) {
    p->state = BAD;
    p->status = status;
    p->fault = fault;
    return HTTP_PARSE_BAD;
}

void http_parser_open(struct http_parser *p, const struct http_limits *limits) {
    memset(p, 0, sizeof *p);
    p->limits = limits;
}

void http_parser_reset(struct http_parser *p) {
    free(p->text);
    free(p->fields);
    free(p->path);
    free(p->body);
    http_parser_open(p, p->limits);
}

bool http_parser_idle(const struct http_parser *p) {
    return p->state == REQUEST_LINE && p->text_bytes == 0;
}

struct http_header http_parser_header(const struct http_parser *p, uint32_t i) {
    return (struct http_header){p->text + p->fields[i].name, p->text + p->fields[i].value};
}

const char *http_parser_method(const struct http_parser *p) {
    return p->text + p->method_at;
}

const char *http_parser_query(const struct http_parser *p) {
    return p->text + p->query_at;
}

static bool is_token(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool append(struct http_parser *p, char c) {
    if (p->text_bytes + 1 >= p->text_space) {
        size_t space = p->text_space ? p->text_space * 2 : 1024;
        char *text = realloc(p->text, space);
        if (!text)
            return false;
        p->text = text;
        p->text_space = space;
    }
    p->text[p->text_bytes++] = c;
    return true;
}

static enum http_method method_of(const char *name) {
    static const struct {
        const char *name;
        enum http_method method;
    } known[] = {{"GET", HTTP_GET},        {"HEAD", HTTP_HEAD},   {"POST", HTTP_POST},
                 {"PUT", HTTP_PUT},        {"PATCH", HTTP_PATCH}, {"DELETE", HTTP_DELETE},
                 {"OPTIONS", HTTP_OPTIONS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].method;
    return HTTP_OTHER;
}

/* Absolute form: http://authority/path. Returns the length to skip, 0 when it is none. */
static size_t absolute_prefix(const char *target, size_t n) {
    size_t scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                    : strncasecmp(target, "https://", 8) == 0 ? 8
                                                              : 0;
    if (scheme == 0)
        return 0;
    size_t i = scheme;
    while (i < n && target[i] != '/' && target[i] != '?')
        i++;
    return i > scheme ? i : 0;
}

/* METHOD SP target SP HTTP/1.x, exactly one space each. p->path has room for the line. */
static const char *request_line(struct http_parser *p, size_t length) {
    char *line = p->text + p->line_start;
    size_t i = 0;
    while (i < length && is_token((unsigned char)line[i]))
        i++;
    if (i == 0 || i > 32 || line[i] != ' ')
        return "the request line must begin with a method and one space";
    p->method_at = (uint32_t)p->line_start;
    line[i] = 0;
    p->method = method_of(line);
    size_t target = i + 1;
    size_t end = target;
    while (end < length && (unsigned char)line[end] > 0x20 && (unsigned char)line[end] < 0x7F) {
        if (line[end] == '#')
            return "the request target must not hold a '#'";
        end++;
    }
    if (end == target || line[end] != ' ')
        return "the request line must hold a target of visible ASCII characters and one space";
    const char *version = line + end + 1;
    if (length - end - 1 != 8 || memcmp(version, "HTTP/1.", 7) != 0 || version[7] < '0' ||
        version[7] > '9')
        return "the request line must end in HTTP/1.1 or HTTP/1.0";
    p->minor = version[7] == '0' ? 0 : 1;
    p->keep_alive = p->minor == 1;
    line[end] = 0;
    size_t n = end - target;
    char *t = line + target;
    if (n == 1 && t[0] == '*') {
        if (p->method != HTTP_OPTIONS)
            return "the request target '*' needs the method OPTIONS";
        strcpy(p->path, "*");
        p->query_at = (uint32_t)(p->line_start + end);
        return NULL;
    }
    size_t skip = absolute_prefix(t, n), query;
    if (skip > 0 && (skip == n || t[skip] == '?')) {
        strcpy(p->path, "/"); /* http://host and http://host?query mean the root */
        p->query_at = (uint32_t)(p->line_start + target + (skip < n ? skip + 1 : n));
        return NULL;
    }
    const char *fault = http_path_normalise(t + skip, n - skip, p->path, &query);
    if (!fault)
        p->query_at = (uint32_t)(p->line_start + target + skip + query);
    return fault;
}

/* name ":" OWS value OWS. The name is lowered in place. */
static const char *field_line(struct http_parser *p, size_t length, struct http_field *out) {
    char *line = p->text + p->line_start;
    if (line[0] == ' ' || line[0] == '\t')
        return "folded header fields are not accepted";
    size_t i = 0;
    while (i < length && is_token((unsigned char)line[i])) {
        if (line[i] >= 'A' && line[i] <= 'Z')
            line[i] = (char)(line[i] + 32);
        i++;
    }
    if (i == 0 || line[i] != ':')
        return "a header field must be a name, a colon and a value";
    line[i] = 0;
    size_t value = i + 1, end = length;
    while (value < end && (line[value] == ' ' || line[value] == '\t'))
        value++;
    while (end > value && (line[end - 1] == ' ' || line[end - 1] == '\t'))
        end--;
    line[end] = 0;
    out->name = (uint32_t)p->line_start;
    out->value = (uint32_t)(p->line_start + value);
    return NULL;
}

static enum http_parse_result add_field(struct http_parser *p, size_t length) {
    if (p->n_fields >= p->limits->fields)
        return bad(p, 431, "the request has too many header fields");
    if (p->n_fields == p->fields_space) {
        uint32_t space = p->fields_space ? p->fields_space * 2 : 16;
        struct http_field *fields = realloc(p->fields, space * sizeof *fields);
        if (!fields)
            return bad(p, 503, "out of memory");
        p->fields = fields;
        p->fields_space = space;
    }
    const char *fault = field_line(p, length, &p->fields[p->n_fields]);
    if (fault)
        return bad(p, 400, fault);
    p->n_fields++;
    return HTTP_PARSE_MORE;
}

/* Is `word` one of the comma-separated elements? */
static bool has_element(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *s = list; *s;) {
        s += strspn(s, " \t,");
        size_t n = strcspn(s, ",");
        size_t trimmed = n;
        while (trimmed > 0 && (s[trimmed - 1] == ' ' || s[trimmed - 1] == '\t'))
            trimmed--;
        if (trimmed == length && strncasecmp(s, word, length) == 0)
            return true;
        s += n;
    }
    return false;
}

static bool read_length(const char *s, uint64_t *out) {
    uint64_t value = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

/* What the fields say about framing; the whole header is here. */
static enum http_parse_result head_done(struct http_parser *p) {
    unsigned hosts = 0, lengths = 0, codings = 0;
    for (uint32_t i = 0; i < p->n_fields; i++) {
        struct http_header f = http_parser_header(p, i);
        if (strcmp(f.name, "host") == 0) {
            hosts++;
        } else if (strcmp(f.name, "content-length") == 0) {
            lengths++;
            if (!read_length(f.value, &p->content_length))
                return bad(p, 400, "Content-Length must be one decimal number");
        } else if (strcmp(f.name, "transfer-encoding") == 0) {
            codings++;
            if (strcasecmp(f.value, "chunked") != 0)
                return bad(p, 400, "Transfer-Encoding must be chunked");
            p->chunked = true;
        } else if (strcmp(f.name, "connection") == 0) {
            if (has_element(f.value, "close"))
                p->keep_alive = false;
            else if (p->minor == 0 && has_element(f.value, "keep-alive"))
                p->keep_alive = true;
        } else if (strcmp(f.name, "expect") == 0) {
            if (strcasecmp(f.value, "100-continue") != 0)
                return bad(p, 417, "Expect must be 100-continue");
            p->expects_continue = p->minor == 1;
        }
    }
    if (hosts > 1 || (hosts == 0 && p->minor == 1))
        return bad(p, 400, "exactly one Host field is needed");
    if (lengths > 1)
        return bad(p, 400, "Content-Length must be given once");
    if (codings > 1)
        return bad(p, 400, "Transfer-Encoding must be given once");
    if (codings && lengths)
        return bad(p, 400, "Content-Length and Transfer-Encoding exclude each other");
    if (codings && p->minor == 0)
        return bad(p, 400, "Transfer-Encoding needs HTTP/1.1");
    if (p->content_length > p->limits->body_bytes)
        return bad(p, 413, "the request body is larger than this server accepts");
    p->has_body = p->chunked || p->content_length > 0;
    p->state = HEAD_DONE;
    return HTTP_PARSE_HEAD;
}

/* A line has ended: text[line_start .. text_bytes) without its CR LF. */
static enum http_parse_result line_done(struct http_parser *p) {
    size_t length = p->text_bytes - p->line_start;
    if (!append(p, 0))
        return bad(p, 503, "out of memory");
    enum http_parse_result result = HTTP_PARSE_MORE;
    if (p->state == REQUEST_LINE) {
        if (length == 0) {
            p->text_bytes = 0;
            if (++p->blank_lines > MAX_BLANK_LINES)
                return bad(p, 400, "the request line is missing");
            return HTTP_PARSE_MORE;
        }
        p->path = malloc(length + 2);
        if (!p->path)
            return bad(p, 503, "out of memory");
        p->path[0] = 0;
        const char *fault = request_line(p, length);
        if (fault) {
            p->path[0] = 0;
            return bad(p, 400, fault);
        }
        p->state = FIELDS;
    } else if (length == 0) {
        return head_done(p);
    } else {
        result = add_field(p, length);
    }
    p->line_start = p->text_bytes;
    return result;
}

/* One byte of the request line or of a field. */
static enum http_parse_result head_byte(struct http_parser *p, unsigned char c) {
    if (p->state == FIELDS && ++p->fields_bytes > p->limits->header_bytes)
        return bad(p, 431, "the header fields are larger than this server accepts");
    if (p->after_cr) {
        p->after_cr = false;
        if (c != '\n')
            return bad(p, 400, "a carriage return must be followed by a line feed");
        return line_done(p);
    }
    if (c == '\r') {
        p->after_cr = true;
        return HTTP_PARSE_MORE;
    }
    if ((c < 0x20 && c != '\t') || c == 0x7F)
        return bad(p, 400, "the request header holds a control character");
    if (p->state == REQUEST_LINE && p->text_bytes >= p->limits->line_bytes)
        return bad(p, 431, "the request line is longer than this server accepts");
    if (!append(p, (char)c))
        return bad(p, 503, "out of memory");
    return HTTP_PARSE_MORE;
}

/* Room for `more` body bytes and a NUL. Grows with what has come, not with what was announced: a
 * Content-Length costs its sender nothing. */
static bool body_room(struct http_parser *p, size_t more) {
    size_t need = p->body_bytes + more + 1;
    if (need <= p->body_space)
        return true;
    size_t space = p->body_space ? p->body_space : 4096;
    while (space < need)
        space *= 2;
    if (!p->chunked && space > p->content_length + 1)
        space = (size_t)p->content_length + 1;
    char *body = realloc(p->body, space);
    if (!body)
        return false;
    p->body = body;
    p->body_space = space;
    return true;
}

static enum http_parse_result body_bytes(struct http_parser *p, const char *bytes, size_t n) {
    if (n > p->limits->body_bytes - p->body_bytes)
        return bad(p, 413, "the request body is larger than this server accepts");
    if (!body_room(p, n))
        return bad(p, 503, "out of memory");
    memcpy(p->body + p->body_bytes, bytes, n);
    p->body_bytes += n;
    p->body[p->body_bytes] = 0;
    return HTTP_PARSE_MORE;
}

static int hex(unsigned char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte of the lines between chunks: size, extensions, the line end behind data. */
static enum http_parse_result chunk_byte(struct http_parser *p, unsigned char c) {
    if (p->after_cr) {
        p->after_cr = false;
        if (c != '\n')
            return bad(p, 400, "a carriage return must be followed by a line feed");
        if (p->state == CHUNK_END) {
            p->state = CHUNK_SIZE;
            p->chunk_digits = 0;
            p->chunk_left = 0;
        } else if (p->chunk_left > 0) {
            p->state = CHUNK_DATA;
        } else {
            p->state = TRAILERS;
            p->line_start = 0;
        }
        return HTTP_PARSE_MORE;
    }
    if (p->state == CHUNK_SIZE) {
        int digit = hex(c);
        if (digit >= 0) {
            if (++p->chunk_digits > 16)
                return bad(p, 400, "a chunk size has more than 16 digits");
            p->chunk_left = p->chunk_left << 4 | (unsigned)digit;
            return HTTP_PARSE_MORE;
        }
        if (p->chunk_digits == 0)
            return bad(p, 400, "a chunk must begin with its size in hexadecimal");
        /* Refused by its announced size: the sum of data and announcement cannot wrap. */
        if (p->chunk_left > p->limits->body_bytes - p->body_bytes)
            return bad(p, 413, "the request body is larger than this server accepts");
    }
    if (c == '\r') {
        p->after_cr = true;
        return HTTP_PARSE_MORE;
    }
    if (p->state == CHUNK_END)
        return bad(p, 400, "the data of a chunk is longer than its size");
    if (p->state == CHUNK_SIZE && c != ';')
        return bad(p, 400, "a chunk size must be followed by a line end or ';'");
    p->state = CHUNK_EXTENSION;
    if ((c < 0x20 && c != '\t') || c == 0x7F)
        return bad(p, 400, "a chunk extension holds a control character");
    if (++p->chunk_extra > MAX_CHUNK_EXTRA)
        return bad(p, 400, "chunk extensions are larger than this server accepts");
    return HTTP_PARSE_MORE;
}

/* Trailer fields are checked for their form and dropped: none means anything here. line_start
 * counts the bytes of the current line, chunk_digits says that its colon has come. */
static enum http_parse_result trailer_byte(struct http_parser *p, unsigned char c) {
    if (p->after_cr) {
        p->after_cr = false;
        if (c != '\n')
            return bad(p, 400, "a carriage return must be followed by a line feed");
        if (p->line_start == 0) {
            p->state = DONE;
            return HTTP_PARSE_DONE;
        }
        if (!p->chunk_digits)
            return bad(p, 400, "a trailer field must be a name, a colon and a value");
        p->line_start = 0;
        return HTTP_PARSE_MORE;
    }
    if (p->line_start == 0)
        p->chunk_digits = 0;
    if (c == '\r') {
        p->after_cr = true;
        return HTTP_PARSE_MORE;
    }
    if (++p->chunk_extra > MAX_CHUNK_EXTRA)
        return bad(p, 431, "trailer fields are larger than this server accepts");
    if (!p->chunk_digits) {
        if (c == ':' && p->line_start > 0)
            p->chunk_digits = 1;
        else if (!is_token(c))
            return bad(p, 400, "a trailer field must be a name, a colon and a value");
    } else if ((c < 0x20 && c != '\t') || c == 0x7F) {
        return bad(p, 400, "a trailer field holds a control character");
    }
    p->line_start++;
    return HTTP_PARSE_MORE;
}

/* Data of a body: as much as is there and belongs to it. */
static enum http_parse_result data(struct http_parser *p, const char *bytes, size_t n, size_t *i) {
    uint64_t left = p->state == CHUNK_DATA ? p->chunk_left : p->content_length - p->body_bytes;
    size_t piece = n - *i < left ? n - *i : (size_t)left;
    enum http_parse_result result = body_bytes(p, bytes + *i, piece);
    if (result != HTTP_PARSE_MORE)
        return result;
    *i += piece;
    if (piece < left) {
        if (p->state == CHUNK_DATA)
            p->chunk_left -= piece;
        return HTTP_PARSE_MORE;
    }
    if (p->state == CHUNK_DATA) {
        p->state = CHUNK_END;
        return HTTP_PARSE_MORE;
    }
    p->state = DONE;
    return HTTP_PARSE_DONE;
}

/* The header was told of; the body, if any, begins. */
static enum http_parse_result begin_body(struct http_parser *p) {
    if (!p->has_body) {
        p->state = DONE;
        return HTTP_PARSE_DONE;
    }
    p->state = p->chunked ? CHUNK_SIZE : BODY_LENGTH;
    p->chunk_digits = 0;
    return HTTP_PARSE_MORE;
}

enum http_parse_result http_parse(struct http_parser *p, const char *bytes, size_t n,
                                  size_t *taken) {
    enum http_parse_result result = HTTP_PARSE_MORE;
    size_t i = 0;
    *taken = 0;
    if (p->state == HEAD_DONE)
        result = begin_body(p);
    else if (p->state == DONE)
        result = HTTP_PARSE_DONE;
    else if (p->state == BAD)
        result = HTTP_PARSE_BAD;
    while (result == HTTP_PARSE_MORE && i < n) {
        switch ((enum state)p->state) {
        case REQUEST_LINE:
        case FIELDS: result = head_byte(p, (unsigned char)bytes[i++]); break;
        case BODY_LENGTH:
        case CHUNK_DATA: result = data(p, bytes, n, &i); break;
        case CHUNK_SIZE:
        case CHUNK_EXTENSION:
        case CHUNK_END: result = chunk_byte(p, (unsigned char)bytes[i++]); break;
        case TRAILERS: result = trailer_byte(p, (unsigned char)bytes[i++]); break;
        case HEAD_DONE:
        case DONE:
        case BAD: return bad(p, 400, "the request is out of step");
        }
    }
    *taken = i;
    return result;
}
