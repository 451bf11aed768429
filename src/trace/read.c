/* read.c: opens files and directories, walks their lines, and hands each to the reader of its
 * format. Called by bench, plan and tests. */
#include "trace/builder.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const char *const names[TRACE_FORMATS + 1] = {
    [TRACE_WEKA] = "weka",
    [TRACE_MOONCAKE] = "mooncake",
    [TRACE_AZURE] = "azure",
    [TRACE_SINGLE_TURN] = "single_turn",
    [TRACE_MULTI_TURN] = "multi_turn",
    [TRACE_SHAREGPT] = "sharegpt",
    [TRACE_RANDOM] = "random",
};

const char *trace_format_name(enum trace_format f) {
    return names[f];
}

weir_status trace_format_parse(const char *name, enum trace_format *out, weir_error *err) {
    for (int f = 0; f < TRACE_FORMATS; f++)
        if (!strcmp(names[f], name)) {
            *out = (enum trace_format)f;
            return WEIR_OK;
        }
    return weir_fail(
        err, WEIR_BAD_VALUE, "format",
        "'%.100s' is none of weka, mooncake, azure, single_turn, multi_turn and sharegpt", name);
}

/* ---------------------------------------------------------------------------------------- lines */

static weir_status read_object(struct builder *b, const json_t *object) {
    if (!json_is_object(object))
        return builder_refuse(b, "is not a JSON object");
    switch (b->t.format) {
    case TRACE_WEKA: return read_weka_object(b, object);
    case TRACE_MOONCAKE: return read_mooncake_object(b, object);
    case TRACE_SINGLE_TURN: return read_single_turn_object(b, object);
    case TRACE_MULTI_TURN: return read_multi_turn_object(b, object);
    case TRACE_AZURE:
    case TRACE_SHAREGPT:
    case TRACE_FORMATS: break;
    }
    WEIR_ASSERT(!"a format of JSON lines");
    return WEIR_BAD_VALUE;
}

weir_status builder_json_fault(struct builder *b, const json_error_t *fault) {
    if (json_error_code(fault) == json_error_out_of_memory)
        return builder_no_memory(b);
    if (json_error_code(fault) == json_error_premature_end_of_input)
        return builder_refuse(b, "is not a JSON object: it ends in the middle, is it cut off?");
    if (json_error_code(fault) == json_error_null_character)
        return builder_refuse(b, "column %d: a text holds \\u0000, which none may", fault->column);
    return builder_refuse(b, "is not a JSON object: column %d: %.200s", fault->column, fault->text);
}

weir_status builder_slurp(struct builder *b, FILE *in, char **text, size_t *room, size_t used,
                          size_t *bytes) {
    for (size_t n = 1; n > 0; used += n) {
        if (*room - used < 1 << 16) {
            char *more = realloc(*text, 2 * *room + (1 << 17));
            if (!more)
                return builder_no_memory(b);
            *text = more;
            *room = 2 * *room + (1 << 17);
        }
        n = fread(*text + used, 1, *room - used - 1, in);
    }
    (*text)[used] = 0;
    *bytes = used;
    return ferror(in) ? builder_refuse(b, "reading stopped here: %s", strerror(errno)) : WEIR_OK;
}

/* A session may also be one JSON object over many lines: then its first line alone is no object.
 * Takes the rest of the stream; `line` (freed by the caller) and *room grow. */
static weir_status read_whole(struct builder *b, FILE *in, char **line, size_t *room, size_t used) {
    weir_status s = builder_slurp(b, in, line, room, used, &used);
    if (s)
        return s;
    json_error_t fault;
    json_t *object = json_loadb(*line, used, JSON_REJECT_DUPLICATES, &fault);
    if (!object) {
        builder_line(b, b->line + (fault.line > 0 ? (uint64_t)fault.line - 1 : 0));
        return builder_json_fault(b, &fault);
    }
    s = read_object(b, object);
    json_decref(object);
    return s;
}

static weir_status read_json_line(struct builder *b, FILE *in, char **line, size_t *room,
                                  size_t n) {
    json_error_t fault;
    json_t *object = json_loadb(*line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &fault);
    if (object) {
        weir_status s = read_object(b, object);
        json_decref(object);
        return s;
    }
    /* Only a file without a session so far can be one object over many lines. */
    bool first = b->t.format == TRACE_WEKA && json_object_size(b->by_id) == 0;
    if (first && json_error_code(&fault) == json_error_premature_end_of_input && !feof(in)) {
        int next = getc(in);
        if (next != EOF) {
            ungetc(next, in);
            return read_whole(b, in, line, room, n);
        }
    }
    return builder_json_fault(b, &fault);
}

static bool is_blank(const char *line, size_t n) {
    return n == strspn(line, " \t\r\n");
}

static weir_status read_lines(struct builder *b, FILE *in) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    weir_status s = WEIR_OK;
    errno = 0;
    for (uint64_t number = 1; !s && (n = getline(&line, &room, in)) >= 0; number++) {
        builder_line(b, number);
        if (is_blank(line, (size_t)n))
            continue;
        s = b->t.format == TRACE_AZURE ? read_azure_line(b, line, (size_t)n)
                                       : read_json_line(b, in, &line, &room, (size_t)n);
        errno = 0;
    }
    free(line);
    if (!s && errno == ENOMEM)
        s = builder_no_memory(b);
    else if (!s && ferror(in))
        s = builder_refuse(b, "reading stopped here: %s", strerror(errno));
    return s;
}

/* Steps over a byte order mark; what is compressed is named as that. */
static weir_status read_mark(struct builder *b, FILE *in) {
    errno = 0;
    int c = getc(in);
    if (c == EOF && ferror(in))
        return builder_refuse(b, "cannot be read: %s", strerror(errno));
    builder_line(b, 1);
    if (c == 0x1f || c == 0x28) { /* gzip; zstd, whose first byte is an open bracket */
        int next = getc(in);
        if ((c == 0x1f && next == 0x8b) || (c == 0x28 && next == 0xb5))
            return builder_refuse(b, "is compressed with %s: unpack it first",
                                  c == 0x1f ? "gzip" : "zstd");
        return builder_refuse(b, "begins with byte 0x%02x, which no trace does", c);
    }
    if (c == 0xef)
        return getc(in) == 0xbb && getc(in) == 0xbf
                   ? WEIR_OK
                   : builder_refuse(b, "begins with byte 0xef, which no trace does");
    if (c != EOF)
        ungetc(c, in);
    return WEIR_OK;
}

static weir_status read_all(struct builder *b, FILE *in) {
    weir_status s = read_mark(b, in);
    if (s)
        return s;
    return b->t.format == TRACE_SHAREGPT ? read_sharegpt(b, in) : read_lines(b, in);
}

/* ---------------------------------------------------------------------------------------- files */

static weir_status read_file(struct builder *b, const char *path) {
    weir_status s = builder_file(b, path);
    if (s)
        return s;
    FILE *in = fopen(path, "rbe");
    if (!in)
        return builder_refuse(b, "cannot be opened: %s", strerror(errno));
    s = read_all(b, in);
    fclose(in);
    return s;
}

static int is_trace_name(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return (n > 5 && !strcmp(e->d_name + n - 5, ".json")) ||
           (n > 6 && !strcmp(e->d_name + n - 6, ".jsonl"));
}

/* Not alphasort: the order of names must not depend on the locale. */
static int by_bytes(const struct dirent **a, const struct dirent **z) {
    return strcmp((*a)->d_name, (*z)->d_name);
}

static weir_status read_directory(struct builder *b, const char *path) {
    struct dirent **entry;
    int n = scandir(path, &entry, is_trace_name, by_bytes);
    if (n < 0)
        return weir_fail(b->err, WEIR_BAD_FILE, path, "cannot be listed: %s", strerror(errno));
    weir_status s = WEIR_OK;
    if (n == 0)
        s = weir_fail(b->err, WEIR_BAD_FILE, path, "holds no *.json and no *.jsonl");
    for (int i = 0; i < n; i++) {
        char *file = NULL;
        if (!s && asprintf(&file, "%s/%s", path, entry[i]->d_name) < 0) {
            file = NULL;
            s = builder_no_memory(b);
        }
        if (!s)
            s = read_file(b, file);
        free(file);
        free(entry[i]);
    }
    free(entry);
    return s;
}

static weir_status finish(struct builder *b, weir_status s, const char *name, struct trace *out) {
    if (!s && b->t.n_requests == 0)
        s = weir_fail(b->err, WEIR_BAD_FILE, name, "holds no request");
    return builder_finish(b, s, out);
}

weir_status trace_read_stream(FILE *in, const char *name, enum trace_format format,
                              const struct trace_options *options, struct trace *out,
                              weir_error *err) {
    struct builder b;
    builder_open(&b, format, options, err);
    weir_status s = builder_file(&b, name);
    if (!s)
        s = read_all(&b, in);
    return finish(&b, s, name, out);
}

weir_status trace_read(const char *path, enum trace_format format,
                       const struct trace_options *options, struct trace *out, weir_error *err) {
    struct builder b;
    struct stat st;
    builder_open(&b, format, options, err);
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    weir_status s;
    if (directory && format != TRACE_WEKA)
        s = weir_fail(err, WEIR_BAD_FILE, path, "is a directory; only weka traces may be one");
    else
        s = directory ? read_directory(&b, path) : read_file(&b, path);
    return finish(&b, s, path, out);
}
