/* events.h: server-sent events out of bytes that come in pieces of any size. Stands LF, CRLF and CR
 * line ends, comments, fields without a space behind the colon, events of several data lines and a
 * byte-order mark. The result does not depend on how the bytes were cut. */
#ifndef WEIR_BENCH_EVENTS_H
#define WEIR_BENCH_EVENTS_H

#include <stdbool.h>
#include <stddef.h>

enum { EVENTS_LIMIT = 16 << 20 }; /* bytes of one line or event */

struct events {
    char *line, *data; /* the unfinished line; data lines of the unfinished event */
    size_t n_line, line_room, n_data, data_room;
    size_t n_lines; /* data lines of the event */
    bool after_cr, started;
    bool failed; /* an event was too long, or there was no memory; nothing more is taken */
};

/* An event: its data lines joined by line feeds, with a NUL behind. */
typedef void events_take(void *user, const char *data, size_t n);

void events_free(struct events *e); /* and ready to begin anew */
/* False when the stream failed, see above. */
bool events_feed(struct events *e, const char *bytes, size_t n, events_take *take, void *user);
/* The stream is over: an event whose blank line never came is given out too, as servers cut off in
 * the middle leave one. */
bool events_end(struct events *e, events_take *take, void *user);

#endif
