/* seen_blocks.c: the set of seen blocks. Called by the statistics of traces and of runs. */
#include "trace/seen_blocks.h"

#include "base/rng.h"

static struct seen_pair *find(const struct seen *s, uint64_t space, uint64_t id) {
    size_t at = (size_t)rng_mix(rng_mix(id) ^ space);
    for (;; at++) {
        struct seen_pair *p = &s->pair[at & (s->room - 1)];
        if (!p->used || (p->space == space && p->id == id))
            return p;
    }
}

static bool grow(struct seen *s) {
    struct seen bigger = {.n = s->n, .room = s->room ? 2 * s->room : 1024};
    bigger.pair = calloc(bigger.room, sizeof *bigger.pair);
    if (!bigger.pair)
        return false;
    for (size_t i = 0; i < s->room; i++)
        if (s->pair[i].used)
            *find(&bigger, s->pair[i].space, s->pair[i].id) = s->pair[i];
    free(s->pair);
    *s = bigger;
    return true;
}

static bool add(struct seen *s, uint64_t space, uint64_t id) {
    if (2 * (s->n + 1) > s->room && !grow(s))
        return false;
    struct seen_pair *p = find(s, space, id);
    s->n += !p->used;
    *p = (struct seen_pair){.id = id, .space = space, .used = true};
    return true;
}

bool seen_hits(struct seen *s, const struct trace_request *r, uint64_t space, uint64_t *hits) {
    uint64_t h = 0;
    while (s->room && h < r->n_blocks && find(s, space, r->hash_ids[h])->used)
        h++;
    *hits = h;
    for (; h < r->n_blocks; h++)
        if (!add(s, space, r->hash_ids[h]))
            return false;
    return true;
}

void seen_free(struct seen *s) {
    free(s->pair);
    *s = (struct seen){0};
}
