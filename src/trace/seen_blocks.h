/* seen_blocks.h: a set of pairs (name space, number of a block), for counting what a cache that
 * never forgets would find. Inside of the trace room. */
#ifndef WEIR_TRACE_SEEN_BLOCKS_H
#define WEIR_TRACE_SEEN_BLOCKS_H

#include "trace/trace.h"

/* Open addressing, at most half full. Zero-initialise; free with seen_free. */
struct seen {
    struct seen_pair {
        uint64_t id, space;
        bool used;
    } * pair;
    size_t n, room; /* room: a power of two */
};
/* Leading blocks of `r` that are in the set; the others are added. False without memory. */
bool seen_hits(struct seen *s, const struct trace_request *r, uint64_t space, uint64_t *hits);
void seen_free(struct seen *s);

#endif
