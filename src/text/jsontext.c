/* jsontext.c: see jsontext.h. The scanner is iterative because it reads what models write; the
 * reader and the writer recurse, bounded by max_depth. Invariant that bites: a node that a repeated
 * key replaces must stay alive as long as the table, or a later number could be given its address
 * and with it its spelling. */
#include "text/jsontext.h"

#include "text/utf8.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { SCAN_DEPTH = 512 };

json_t *jsontext_loose(const json_t *value) {
    union {
        const json_t *in;
        json_t *out;
    } u = {value};
    return u.out;
}

/* -------------------------------------------------------------------------------------------------
 * spellings by address */

struct spelling {
    const json_t *node; /* NULL: free */
    char *text;
};

struct jsontext_numbers {
    struct spelling *slots;
    size_t n, capacity; /* capacity is a power of two, at most half full */
    json_t *replaced;   /* array: values that a repeated key replaced */
};

struct jsontext_numbers *jsontext_numbers_new(void) {
    struct jsontext_numbers *t = calloc(1, sizeof *t);
    WEIR_ASSERT(t != NULL);
    return t;
}

void jsontext_numbers_free(struct jsontext_numbers *t) {
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->capacity; i++)
        free(t->slots[i].text);
    free(t->slots);
    json_decref(t->replaced);
    free(t);
}

static struct spelling *slot_of(const struct jsontext_numbers *t, const json_t *node) {
    size_t h = (size_t)(((uintptr_t)node >> 4) * 0x9E3779B97F4A7C15u >> 20);
    for (;; h++) {
        struct spelling *s = &t->slots[h & (t->capacity - 1)];
        if (s->node == NULL || s->node == node)
            return s;
    }
}

static void remember(struct jsontext_numbers *t, const json_t *node, const char *s, size_t n) {
    if (2 * (t->n + 1) > t->capacity) {
        struct jsontext_numbers wider = {.capacity = t->capacity ? 2 * t->capacity : 64};
        wider.slots = calloc(wider.capacity, sizeof *wider.slots);
        WEIR_ASSERT(wider.slots != NULL);
        for (size_t i = 0; i < t->capacity; i++)
            if (t->slots[i].node != NULL)
                *slot_of(&wider, t->slots[i].node) = t->slots[i];
        free(t->slots);
        t->slots = wider.slots;
        t->capacity = wider.capacity;
    }
    struct spelling *slot = slot_of(t, node);
    t->n += slot->node == NULL;
    free(slot->text);
    slot->node = node;
    slot->text = strndup(s, n);
    WEIR_ASSERT(slot->text != NULL);
}

static const char *spelling_of(const struct jsontext_numbers *t, const json_t *node) {
    return t == NULL || t->capacity == 0 ? NULL : slot_of(t, node)->text;
}

/* -------------------------------------------------------------------------------------------------
 * scanning */

size_t jsontext_skip_space(const char *s, size_t n, size_t at) {
    while (at < n && (s[at] == ' ' || s[at] == '\n' || s[at] == '\r' || s[at] == '\t'))
        at++;
    return at;
}

static bool is_digit(const char *s, size_t n, size_t at) {
    return at < n && s[at] >= '0' && s[at] <= '9';
}

static size_t number_end(const char *s, size_t n, size_t at) {
    if (at < n && s[at] == '-')
        at++;
    if (!is_digit(s, n, at))
        return 0;
    if (s[at++] != '0')
        while (is_digit(s, n, at))
            at++;
    if (at < n && s[at] == '.') {
        if (!is_digit(s, n, ++at))
            return 0;
        while (is_digit(s, n, at))
            at++;
    }
    if (at < n && (s[at] == 'e' || s[at] == 'E')) {
        at++;
        if (at < n && (s[at] == '+' || s[at] == '-'))
            at++;
        if (!is_digit(s, n, at))
            return 0;
        while (is_digit(s, n, at))
            at++;
    }
    return at;
}

static int32_t hex4(const char *s, size_t n, size_t at) {
    int32_t v = 0;
    if (n - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

static void put_code_point(struct text *out, uint32_t c) {
    char b[4];
    size_t n = 0;
    if (c < 0x80) {
        b[n++] = (char)c;
    } else if (c < 0x800) {
        b[n++] = (char)(0xC0 | c >> 6);
        b[n++] = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        b[n++] = (char)(0xE0 | c >> 12);
        b[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        b[n++] = (char)(0x80 | (c & 0x3F));
    } else {
        b[n++] = (char)(0xF0 | c >> 18);
        b[n++] = (char)(0x80 | (c >> 12 & 0x3F));
        b[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        b[n++] = (char)(0x80 | (c & 0x3F));
    }
    text_append(out, b, n);
}

/* s[at] is the character behind a backslash. Returns the index behind the escape, or 0. */
static size_t escape_end(const char *s, size_t n, size_t at, struct text *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (at >= n)
        return 0;
    if (s[at] != 'u') {
        const char *p = s[at] == '\0' ? NULL : strchr(from, s[at]);
        if (p == NULL)
            return 0;
        if (out != NULL)
            text_append(out, &to[p - from], 1);
        return at + 1;
    }
    int32_t c = hex4(s, n, ++at);
    if (c < 0)
        return 0;
    at += 4;
    if (c >= 0xD800 && c < 0xE000) {
        if (c >= 0xDC00 || n - at < 6 || s[at] != '\\' || s[at + 1] != 'u')
            return 0;
        int32_t low = hex4(s, n, at + 2);
        if (low < 0xDC00 || low >= 0xE000)
            return 0;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    if (out != NULL)
        put_code_point(out, (uint32_t)c);
    return at;
}

static size_t string_end(const char *s, size_t n, size_t at, struct text *out) {
    if (at >= n || s[at] != '"')
        return 0;
    size_t run = ++at;
    for (; at < n; at++) {
        unsigned char c = (unsigned char)s[at];
        if (c != '"' && c != '\\' && c >= 0x20)
            continue;
        if (c < 0x20)
            return 0;
        if (out != NULL)
            text_append(out, s + run, at - run);
        if (c == '"')
            return at + 1;
        size_t end = escape_end(s, n, at + 1, out);
        if (end == 0)
            return 0;
        run = end;
        at = end - 1;
    }
    return 0;
}

size_t jsontext_string(const char *s, size_t n, size_t at, struct text *out) {
    return string_end(s, n, at, out);
}

static size_t word_end(const char *s, size_t n, size_t at, const char *word) {
    size_t w = strlen(word);
    return n - at >= w && memcmp(s + at, word, w) == 0 ? at + w : 0;
}

static size_t scalar_end(const char *s, size_t n, size_t at) {
    if (at >= n)
        return 0;
    switch (s[at]) {
    case '"': return string_end(s, n, at, NULL);
    case 't': return word_end(s, n, at, "true");
    case 'f': return word_end(s, n, at, "false");
    case 'n': return word_end(s, n, at, "null");
    default: return number_end(s, n, at);
    }
}

/* Reads `"key" :` and the white space around it; 0 when it is not there. */
static size_t key_end(const char *s, size_t n, size_t at) {
    at = string_end(s, n, at, NULL);
    if (at == 0)
        return 0;
    at = jsontext_skip_space(s, n, at);
    return at < n && s[at] == ':' ? jsontext_skip_space(s, n, at + 1) : 0;
}

size_t jsontext_value_end(const char *s, size_t n, size_t at) {
    char closer[SCAN_DEPTH];
    size_t depth = 0;
    for (;;) {
        /* A value starts at `at`. */
        if (at < n && (s[at] == '{' || s[at] == '[')) {
            if (depth == SCAN_DEPTH)
                return 0;
            bool object = s[at] == '{';
            closer[depth++] = object ? '}' : ']';
            at = jsontext_skip_space(s, n, at + 1);
            if (at >= n)
                return 0;
            if (s[at] != closer[depth - 1]) {
                if (object && (at = key_end(s, n, at)) == 0)
                    return 0;
                continue;
            }
            at++;
            depth--;
        } else if ((at = scalar_end(s, n, at)) == 0) {
            return 0;
        }
        /* A value ended before `at`: close what ends here, or go on to the next member. */
        for (;;) {
            if (depth == 0)
                return at;
            at = jsontext_skip_space(s, n, at);
            if (at >= n || s[at] != closer[depth - 1])
                break;
            at++;
            depth--;
        }
        if (at >= n || s[at] != ',')
            return 0;
        at = jsontext_skip_space(s, n, at + 1);
        if (closer[depth - 1] == '}' && (at = key_end(s, n, at)) == 0)
            return 0;
    }
}

/* -------------------------------------------------------------------------------------------------
 * reading */

struct reader {
    const char *s;
    size_t n, at;
    unsigned depth, max_depth;
    struct jsontext_numbers *numbers;
    struct text names; /* a stack: the keys of the objects being read */
    struct text scratch;
    const char *fault;
};

static const char too_deep[] = "nested too deep";

static json_t *read_value(struct reader *r);

static json_t *fault(struct reader *r, const char *what) {
    if (r->fault == NULL)
        r->fault = what;
    return NULL;
}

static bool next_is(struct reader *r, char c) {
    r->at = jsontext_skip_space(r->s, r->n, r->at);
    if (r->at >= r->n || r->s[r->at] != c)
        return false;
    r->at++;
    return true;
}

static json_t *read_number(struct reader *r) {
    size_t end = number_end(r->s, r->n, r->at);
    if (end == 0)
        return fault(r, "expected a value");
    const char *s = r->s + r->at;
    size_t n = end - r->at;
    r->at = end;
    text_clear(&r->scratch);
    text_append(&r->scratch, s, n);
    bool integer = strcspn(r->scratch.data, ".eE") == n;
    errno = 0;
    long long whole = integer ? strtoll(r->scratch.data, NULL, 10) : 0;
    if (integer && errno == 0) {
        json_t *node = json_integer(whole);
        if (r->numbers != NULL && n == 2 && s[0] == '-' && s[1] == '0')
            remember(r->numbers, node, s, n);
        return node;
    }
    double real = strtod(r->scratch.data, NULL);
    json_t *node = json_real(isinf(real) ? copysign(DBL_MAX, real) : real);
    if (r->numbers != NULL)
        remember(r->numbers, node, s, n);
    return node;
}

static json_t *read_string(struct reader *r) {
    text_clear(&r->scratch);
    size_t end = string_end(r->s, r->n, r->at, &r->scratch);
    if (end == 0)
        return fault(r, "the string that starts here has a bad escape, a raw control character, a "
                        "lone surrogate or no end");
    r->at = end;
    return json_stringn_nocheck(r->scratch.data ? r->scratch.data : "", r->scratch.n);
}

static json_t *read_array(struct reader *r) {
    json_t *array = json_array();
    r->at++;
    if (next_is(r, ']'))
        return array;
    for (;;) {
        json_t *item = read_value(r);
        if (item == NULL)
            break;
        json_array_append_new(array, item);
        if (next_is(r, ']'))
            return array;
        if (!next_is(r, ',')) {
            fault(r, "expected ',' or ']'");
            break;
        }
    }
    json_decref(array);
    return NULL;
}

static void put_member(struct reader *r, json_t *object, const char *key, size_t n, json_t *value) {
    json_t *old = json_object_getn(object, key, n);
    if (old != NULL && r->numbers != NULL) {
        if (r->numbers->replaced == NULL)
            r->numbers->replaced = json_array();
        json_array_append(r->numbers->replaced, old);
    }
    json_object_setn_new_nocheck(object, key, n, value);
}

/* Reads `"key": value` onto the object; false on a fault. */
static bool read_member(struct reader *r, json_t *object) {
    size_t start = r->names.n;
    r->at = jsontext_skip_space(r->s, r->n, r->at);
    size_t end = string_end(r->s, r->n, r->at, &r->names);
    size_t length = r->names.n - start;
    bool good = false;
    if (end == 0) {
        fault(r, "expected a key in double quotes");
    } else {
        r->at = end;
        if (!next_is(r, ':')) {
            fault(r, "expected ':'");
        } else {
            json_t *value = read_value(r);
            good = value != NULL;
            if (good)
                put_member(r, object, length ? r->names.data + start : "", length, value);
        }
    }
    r->names.n = start;
    return good;
}

static json_t *read_object(struct reader *r) {
    json_t *object = json_object();
    r->at++;
    if (next_is(r, '}'))
        return object;
    while (read_member(r, object)) {
        if (next_is(r, '}'))
            return object;
        if (!next_is(r, ',')) {
            fault(r, "expected ',' or '}'");
            break;
        }
    }
    json_decref(object);
    return NULL;
}

static json_t *read_value(struct reader *r) {
    r->at = jsontext_skip_space(r->s, r->n, r->at);
    if (r->at >= r->n)
        return fault(r, "the text ends where a value is expected");
    char c = r->s[r->at];
    if (c == '{' || c == '[') {
        if (r->depth == r->max_depth)
            return fault(r, too_deep);
        r->depth++;
        json_t *v = c == '{' ? read_object(r) : read_array(r);
        r->depth--;
        return v;
    }
    if (c == '"')
        return read_string(r);
    size_t end = c == 't' || c == 'f' || c == 'n' ? scalar_end(r->s, r->n, r->at) : 0;
    if (end == 0)
        return read_number(r);
    r->at = end;
    return c == 't' ? json_true() : c == 'f' ? json_false() : json_null();
}

static weir_status read_fault(const struct reader *r, const char *where, weir_error *err) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < r->at && i < r->n; i++) {
        column = r->s[i] == '\n' ? 1 : column + 1;
        line += r->s[i] == '\n';
    }
    if (r->fault == too_deep)
        return weir_fail(err, WEIR_BAD_VALUE, where,
                         "nested deeper than %u levels at line %zu, column %zu", r->max_depth, line,
                         column);
    return weir_fail(err, WEIR_BAD_VALUE, where, "not valid JSON at line %zu, column %zu: %s", line,
                     column, r->fault);
}

weir_status jsontext_read(const char *s, size_t n, unsigned max_depth, const char *where,
                          struct jsontext_numbers *numbers, json_t **out, weir_error *err) {
    *out = NULL;
    if (!utf8_valid(s, n))
        return weir_fail(err, WEIR_BAD_VALUE, where, "not valid UTF-8");
    struct reader r = {.s = s, .n = n, .max_depth = max_depth, .numbers = numbers};
    json_t *v = read_value(&r);
    if (v != NULL) {
        r.at = jsontext_skip_space(s, n, r.at);
        if (r.at < n) {
            fault(&r, "text after the value");
            json_decref(v);
            v = NULL;
        }
    }
    text_free(&r.names);
    text_free(&r.scratch);
    if (v == NULL)
        return read_fault(&r, where, err);
    *out = v;
    return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------
 * writing */

void jsontext_escape(struct text *out, const char *s, size_t n) {
    size_t run = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        text_append(out, s + run, i - run);
        run = i + 1;
        char b[8];
        switch (c) {
        case '"': text_puts(out, "\\\""); break;
        case '\\': text_puts(out, "\\\\"); break;
        case '\b': text_puts(out, "\\b"); break;
        case '\f': text_puts(out, "\\f"); break;
        case '\n': text_puts(out, "\\n"); break;
        case '\r': text_puts(out, "\\r"); break;
        case '\t': text_puts(out, "\\t"); break;
        default: snprintf(b, sizeof b, "\\u%04x", c); text_puts(out, b);
        }
    }
    text_append(out, s + run, n - run);
}

static void write_string(struct text *out, const char *s, size_t n) {
    text_puts(out, "\"");
    jsontext_escape(out, s, n);
    text_puts(out, "\"");
}

static void write_real(struct text *out, double v) {
    char b[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(b, sizeof b, "%.*g", digits, v);
        if (strtod(b, NULL) == v)
            break;
    }
    text_puts(out, b);
    if (strpbrk(b, ".e") == NULL)
        text_puts(out, ".0");
}

struct member {
    const char *key;
    size_t n;
    const json_t *value;
};

static int by_code_point(const void *a, const void *b) {
    const struct member *x = a, *y = b;
    int d = memcmp(x->key, y->key, x->n < y->n ? x->n : y->n);
    return d != 0 ? d : (x->n > y->n) - (x->n < y->n);
}

static void write_object(struct text *out, const json_t *value, const struct jsontext_numbers *t,
                         bool sorted) {
    json_t *object = jsontext_loose(value);
    size_t n = json_object_size(value), i = 0;
    struct member *m = calloc(n ? n : 1, sizeof *m);
    WEIR_ASSERT(m != NULL);
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it))
        m[i++] = (struct member){json_object_iter_key(it), json_object_iter_key_len(it),
                                 json_object_iter_value(it)};
    if (sorted)
        qsort(m, n, sizeof *m, by_code_point);
    text_puts(out, "{");
    for (i = 0; i < n; i++) {
        if (i != 0)
            text_puts(out, ",");
        write_string(out, m[i].key, m[i].n);
        text_puts(out, ":");
        jsontext_write(out, m[i].value, t, sorted);
    }
    text_puts(out, "}");
    free(m);
}

void jsontext_write(struct text *out, const json_t *value, const struct jsontext_numbers *numbers,
                    bool sorted) {
    const char *spelling = NULL;
    char b[32];
    switch (json_typeof(value)) {
    case JSON_OBJECT: write_object(out, value, numbers, sorted); break;
    case JSON_ARRAY:
        text_puts(out, "[");
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i != 0)
                text_puts(out, ",");
            jsontext_write(out, json_array_get(value, i), numbers, sorted);
        }
        text_puts(out, "]");
        break;
    case JSON_STRING: write_string(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER:
    case JSON_REAL:
        spelling = spelling_of(numbers, value);
        if (spelling != NULL) {
            text_puts(out, spelling);
        } else if (json_is_real(value)) {
            write_real(out, json_real_value(value));
        } else {
            snprintf(b, sizeof b, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            text_puts(out, b);
        }
        break;
    case JSON_TRUE: text_puts(out, "true"); break;
    case JSON_FALSE: text_puts(out, "false"); break;
    case JSON_NULL: text_puts(out, "null"); break;
    }
}
