/* io.c: standard input and output of the commands. */
#include "cli/io.h"

#include "text/utf8.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

weir_status io_read_input(size_t limit, char **out, size_t *bytes, weir_error *err) {
    size_t capacity = 65536, n = 0;
    char *data = malloc(capacity);
    while (data) {
        size_t got = fread(data + n, 1, capacity - 1 - n, stdin);
        n += got;
        if (n > limit) {
            free(data);
            return weir_fail(err, WEIR_BAD_FILE, "standard input", "is longer than %zu bytes",
                             limit);
        }
        if (got == 0)
            break;
        if (n + 1 == capacity) {
            char *grown = realloc(data, capacity *= 2);
            if (!grown)
                free(data);
            data = grown;
        }
    }
    if (!data)
        return weir_fail(err, WEIR_NO_MEMORY, "standard input", "no memory");
    if (ferror(stdin)) {
        free(data);
        return weir_fail(err, WEIR_BAD_FILE, "standard input", "cannot be read: %m");
    }
    data[n] = 0;
    *out = data;
    *bytes = n;
    return WEIR_OK;
}

weir_status io_print_json(json_t *value, weir_error *err) {
    if (!value || json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0) {
        json_decref(value);
        return weir_fail(err, WEIR_NO_MEMORY, "standard output", "cannot print the result");
    }
    putchar('\n');
    json_decref(value);
    return WEIR_OK;
}

json_t *io_json_text(const char *bytes, size_t n) {
    struct utf8_stream s = {0};
    struct text t = {0};
    utf8_push(&s, bytes, n, &t);
    utf8_finish(&s, &t);
    json_t *value = json_stringn(t.data ? t.data : "", t.n);
    text_free(&t);
    return value;
}

void io_print_ids(const int32_t *ids, size_t n) {
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf(i ? ",%d" : "%d", ids[i]);
    putchar(']');
}

weir_status io_parse_ids(const char *text, size_t n, uint32_t vocab, const char *where,
                         struct ids *out, weir_error *err) {
    const char *p = text, *end = text + n;
    bool comma = false; /* the last thing read was a comma: an id must follow */
    while (p < end) {
        if (isspace((unsigned char)*p) || (*p == ',' && !comma && out->n > 0)) {
            comma = comma || *p == ',';
            p++;
            continue;
        }
        size_t len = 0;
        uint64_t id = 0;
        while (p + len < end && isdigit((unsigned char)p[len]) && len < 12)
            id = id * 10 + (uint64_t)(p[len++] - '0');
        bool ends = p + len == end || isspace((unsigned char)p[len]) || p[len] == ',';
        if (len == 0 || !ends || id >= vocab) {
            int shown = 0;
            while (p + shown < end && shown < 20 && !isspace((unsigned char)p[shown]) &&
                   p[shown] != ',')
                shown++;
            return weir_fail(err, WEIR_BAD_VALUE, where,
                             "id %zu is '%.*s', not a number from 0 to %u", out->n, shown, p,
                             vocab - 1);
        }
        ids_push(out, (int32_t)id);
        comma = false;
        p += len;
    }
    if (comma)
        return weir_fail(err, WEIR_BAD_VALUE, where, "ends in a comma, an id must follow it");
    return WEIR_OK;
}
