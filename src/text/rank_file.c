/* rank_file.c: reads tiktoken.model and tokenizer_config.json. Called by tokenizer.c. The files
 * come from the network: every number is checked before it sizes or indexes anything. */
#include "text/rank_file.h"

#include "base/plural.h"

#include <jansson.h>
#include <string.h>

/* --- the rank file --------------------------------------------------------------------------- */

static int base64_value(unsigned char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes padded base64 into out (room for n / 4 * 3 bytes). Returns the bytes, or -1 when it is
 * not canonical base64 of at least one byte. */
static long base64_decode(const char *s, size_t n, char *out) {
    if (n == 0 || n % 4 != 0)
        return -1;
    size_t padding = s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2, used = 0;
    for (size_t i = 0; i < n; i += 4) {
        size_t digits = i + 4 < n ? 4 : 4 - padding;
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            int d = k < digits ? base64_value((unsigned char)s[i + k]) : 0;
            if (d < 0)
                return -1;
            v = v << 6 | (uint32_t)d;
        }
        for (size_t k = 0; k + 1 < digits; k++)
            out[used++] = (char)(v >> (16 - 8 * k));
        if (v & ((1u << (24 - 8 * (digits - 1))) - 1))
            return -1; /* bits behind the last byte */
    }
    return (long)used;
}

struct line {
    const char *token, *rank;
    size_t token_n, rank_n;
};

/* Splits the line [s, s + n) at its only space. */
static bool split(const char *s, size_t n, struct line *out) {
    const char *space = memchr(s, ' ', n);
    if (!space)
        return false;
    *out = (struct line){s, space + 1, (size_t)(space - s), n - (size_t)(space - s) - 1};
    return true;
}

/* A decimal number without sign or leading zeros, below `limit`; -1 otherwise. */
static int64_t decimal(const char *s, size_t n, uint32_t limit) {
    if (n == 0 || n > 10 || (n > 1 && s[0] == '0'))
        return -1;
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        v = v * 10 + (s[i] - '0');
    }
    return v < limit ? v : -1;
}

/* Text from a file, fit to be shown: cut short, and unprintable bytes as '?'. */
static const char *shown(char buffer[48], const char *s, size_t n) {
    size_t keep = n < 40 ? n : 40;
    for (size_t i = 0; i < keep; i++)
        buffer[i] = s[i] >= 0x20 && s[i] < 0x7F ? s[i] : '?';
    memcpy(buffer + keep, n > keep ? "..." : "", n > keep ? 4 : 1);
    return buffer;
}

/* The next line that is not empty, without its end; false at the end of the text. */
static bool next_line(const char *text, size_t n, size_t *at, size_t *number, const char **line,
                      size_t *line_n) {
    while (*at < n) {
        const char *s = text + *at, *end = memchr(s, '\n', n - *at);
        size_t length = end ? (size_t)(end - s) : n - *at;
        *at += length + 1;
        ++*number;
        if (length > 0 && s[length - 1] == '\r')
            length--;
        if (length == 0)
            continue;
        *line = s;
        *line_n = length;
        return true;
    }
    return false;
}

/* First pass: where each rank's line is, and how many bytes all tokens have at most. */
static weir_status index_lines(const char *path, const char *text, size_t n, uint32_t lines,
                               struct line *by_rank, weir_error *err) {
    size_t at = 0, number = 0, length;
    const char *s;
    char word[48];
    while (next_line(text, n, &at, &number, &s, &length)) {
        struct line l;
        if (!split(s, length, &l))
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "line %zu: \"%s\" is not base64, a space and a rank", number,
                             shown(word, s, length));
        int64_t rank = decimal(l.rank, l.rank_n, lines);
        if (rank < 0)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "line %zu: rank \"%s\" is not a number from 0 to %" PRIu32
                             " (the file holds %" PRIu32 " %s)",
                             number, shown(word, l.rank, l.rank_n), lines - 1, lines,
                             plural(lines, "token", "tokens"));
        if (by_rank[rank].token)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "line %zu: rank %" PRId64 " was given before", number, rank);
        if (l.token_n > RANK_TOKEN_BYTES / 3 * 4 + 4)
            return weir_fail(err, WEIR_BAD_FILE, path, "line %zu: token is longer than %d bytes",
                             number, RANK_TOKEN_BYTES);
        by_rank[rank] = l;
    }
    return WEIR_OK;
}

static weir_status decode_tokens(const char *path, const struct line *by_rank, uint32_t lines,
                                 struct rank_file *f, weir_error *err) {
    bool single[256] = {false};
    size_t used = 0;
    char word[48];
    for (uint32_t r = 0; r < lines; r++) {
        f->offset[r] = (uint32_t)used;
        long got = base64_decode(by_rank[r].token, by_rank[r].token_n, f->bytes + used);
        if (got <= 0 || got > RANK_TOKEN_BYTES)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "rank %" PRIu32 ": \"%s\" is not base64 of 1 to %d bytes", r,
                             shown(word, by_rank[r].token, by_rank[r].token_n), RANK_TOKEN_BYTES);
        if (got == 1)
            single[(unsigned char)f->bytes[used]] = true;
        used += (size_t)got;
    }
    f->offset[lines] = (uint32_t)used;
    for (int c = 0; c < 256; c++)
        if (!single[c])
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "no token for the single byte 0x%02x: text could not be encoded", c);
    return WEIR_OK;
}

weir_status rank_file_parse(const char *path, const char *text, size_t n, uint32_t vocab,
                            struct rank_file *out, weir_error *err) {
    *out = (struct rank_file){0};
    size_t at = 0, number = 0, lines = 0, length, room = 1;
    const char *s;
    while (next_line(text, n, &at, &number, &s, &length)) {
        lines++;
        room += length;
    }
    if (room > UINT32_MAX)
        return weir_fail(err, WEIR_BAD_FILE, path, "holds more than 4 GiB of tokens");
    if (lines == 0)
        return weir_fail(err, WEIR_BAD_FILE, path, "holds no tokens");
    if (lines > vocab)
        return weir_fail(err, WEIR_BAD_FILE, path, "holds %zu %s, but vocab_size is only %" PRIu32,
                         lines, plural(lines, "token", "tokens"), vocab);
    out->ranks = (uint32_t)lines;
    struct line *by_rank = calloc(lines, sizeof *by_rank);
    out->bytes = malloc(room);
    out->offset = malloc((lines + 1) * sizeof *out->offset);
    weir_status status = WEIR_OK;
    if (!by_rank || !out->bytes || !out->offset)
        status = weir_fail(err, WEIR_NO_MEMORY, path, "no memory for %zu tokens", lines);
    if (!status)
        status = index_lines(path, text, n, out->ranks, by_rank, err);
    if (!status)
        status = decode_tokens(path, by_rank, out->ranks, out, err);
    free(by_rank);
    if (status)
        rank_file_free(out);
    return status;
}

void rank_file_free(struct rank_file *f) {
    free(f->bytes);
    free(f->offset);
    *f = (struct rank_file){0};
}

/* --- the names of special tokens ------------------------------------------------------------- */

static weir_status added_token(const char *path, const char *key, json_t *value, uint32_t ranks,
                               uint32_t vocab, struct added_token *tokens, weir_error *err) {
    char word[48];
    shown(word, key, strlen(key));
    int64_t id = decimal(key, strlen(key), UINT32_MAX);
    if (id < 0)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "added_tokens_decoder: key \"%s\" is not a token id", word);
    if (id >= vocab)
        return WEIR_OK;
    if (id < ranks)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "added_tokens_decoder.%s: ids below %" PRIu32 " belong to the rank file",
                         word, ranks);
    const char *spelling = json_string_value(json_object_get(value, "content"));
    if (!spelling || !*spelling)
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "added_tokens_decoder.%s.content: must be a string that is not empty",
                         word);
    const json_t *special = json_object_get(value, "special");
    if (special && !json_is_boolean(special))
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "added_tokens_decoder.%s.special: must be true or false", word);
    struct added_token *t = &tokens[id - ranks];
    t->special = json_is_true(special);
    t->spelling = strdup(spelling);
    if (!t->spelling)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for a token's name");
    return WEIR_OK;
}

weir_status added_tokens_parse(const char *path, const char *text, size_t n, uint32_t ranks,
                               uint32_t vocab, struct added_token *tokens, weir_error *err) {
    json_error_t fault;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &fault);
    if (!root && !fault.text[0]) /* jansson leaves no text where memory runs out */
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory to parse %zu bytes of JSON", n);
    if (!root)
        return weir_fail(err, WEIR_BAD_FILE, path, "line %d, column %d: %s", fault.line,
                         fault.column, fault.text);
    json_t *list = json_object_get(root, "added_tokens_decoder");
    weir_status status = WEIR_OK;
    if (!json_is_object(list)) {
        status = weir_fail(err, WEIR_BAD_FILE, path,
                           "added_tokens_decoder: must be an object of token ids and names");
    } else {
        const char *key;
        json_t *value;
        json_object_foreach(list, key, value) {
            status = added_token(path, key, value, ranks, vocab, tokens, err);
            if (status)
                break;
        }
    }
    json_decref(root);
    return status;
}
