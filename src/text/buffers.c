/* buffers.c: the growing lists of ids and bytes that the whole room hands its results out in.
 * Memory that cannot be had ends the process: no caller could go on with half an answer. */
#include "text/tokenizer.h"

#include <string.h>

static void *grown(void *data, size_t need, size_t *capacity, size_t item) {
    size_t cap = *capacity ? *capacity : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    void *p = cap > SIZE_MAX / item ? NULL : realloc(data, cap * item);
    if (!p) {
        fprintf(stderr, "weir: no memory for %zu items of text\n", need);
        abort();
    }
    *capacity = cap;
    return p;
}

void ids_push(struct ids *list, int32_t id) {
    if (list->n == list->capacity)
        list->data = grown(list->data, list->n + 1, &list->capacity, sizeof *list->data);
    list->data[list->n++] = id;
}

void ids_append(struct ids *list, const int32_t *data, size_t n) {
    if (n == 0)
        return;
    if (n > list->capacity - list->n)
        list->data = grown(list->data, list->n + n, &list->capacity, sizeof *list->data);
    memcpy(list->data + list->n, data, n * sizeof *data);
    list->n += n;
}

void ids_free(struct ids *list) {
    free(list->data);
    *list = (struct ids){0};
}

void text_append(struct text *t, const char *data, size_t n) {
    if (t->capacity - t->n < n + 1)
        t->data = grown(t->data, t->n + n + 1, &t->capacity, 1);
    if (n)
        memcpy(t->data + t->n, data, n);
    t->n += n;
    t->data[t->n] = 0;
}

void text_puts(struct text *t, const char *s) {
    text_append(t, s, strlen(s));
}

void text_clear(struct text *t) {
    t->n = 0;
    if (t->data)
        t->data[0] = 0;
}

void text_free(struct text *t) {
    free(t->data);
    *t = (struct text){0};
}
