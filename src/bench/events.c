/* events.c: splits a stream into lines and lines into events. Called by answer.c and by the fuzz
 * target. A whole line inside one piece is read where it lies; only torn ones are copied. */
#include "bench/events.h"

#include <stdlib.h>
#include <string.h>

void events_free(struct events *e) {
    free(e->line);
    free(e->data);
    *e = (struct events){0};
}

static bool append(struct events *e, char **text, size_t *used, size_t *room, const char *bytes,
                   size_t n) {
    if (n > EVENTS_LIMIT || *used + n > EVENTS_LIMIT) {
        e->failed = true;
        return false;
    }
    if (*used + n + 1 > *room) {
        size_t wanted = (*used + n + 1) * 2;
        char *grown = realloc(*text, wanted);
        if (!grown) {
            e->failed = true;
            return false;
        }
        *text = grown;
        *room = wanted;
    }
    memcpy(*text + *used, bytes, n);
    *used += n;
    (*text)[*used] = 0;
    return true;
}

static void dispatch(struct events *e, events_take *take, void *user) {
    size_t lines = e->n_lines, n = e->n_data;
    e->n_lines = 0;
    e->n_data = 0;
    if (lines > 0)
        take(user, e->data ? e->data : "", n);
}

static void take_line(struct events *e, const char *line, size_t n, events_take *take, void *user) {
    if (!e->started && n >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3))
        line += 3, n -= 3;
    e->started = true;
    if (n == 0) {
        dispatch(e, take, user);
        return;
    }
    /* Old releases of llama.cpp send trouble as a field named error. Anything else is a comment, or
     * event, id and retry, to which no server of this API gives meaning. */
    size_t name = n >= 4 && !memcmp(line, "data", 4) ? 4 : 5;
    if (n < name || (name == 5 && memcmp(line, "error", 5)) || (n > name && line[name] != ':'))
        return;
    size_t skip = n > name ? name + 1 : name;
    skip += n > skip && line[skip] == ' ';
    if (e->n_lines > 0 && !append(e, &e->data, &e->n_data, &e->data_room, "\n", 1))
        return;
    e->n_lines += append(e, &e->data, &e->n_data, &e->data_room, line + skip, n - skip);
}

static void end_line(struct events *e, const char *piece, size_t n, events_take *take, void *user) {
    if (e->n_line == 0) {
        take_line(e, piece, n, take, user);
        return;
    }
    if (!append(e, &e->line, &e->n_line, &e->line_room, piece, n))
        return;
    n = e->n_line;
    e->n_line = 0;
    take_line(e, e->line, n, take, user);
}

bool events_feed(struct events *e, const char *bytes, size_t n, events_take *take, void *user) {
    for (size_t at = 0; at < n && !e->failed;) {
        if (e->after_cr && bytes[at] == '\n') {
            e->after_cr = false;
            at++;
            continue;
        }
        e->after_cr = false;
        size_t end = at;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        if (end == n) {
            append(e, &e->line, &e->n_line, &e->line_room, bytes + at, n - at);
            break;
        }
        e->after_cr = bytes[end] == '\r';
        end_line(e, bytes + at, end - at, take, user);
        at = end + 1;
    }
    return !e->failed;
}

bool events_end(struct events *e, events_take *take, void *user) {
    if (!e->failed && e->n_line > 0)
        end_line(e, "", 0, take, user);
    if (!e->failed)
        dispatch(e, take, user);
    return !e->failed;
}
