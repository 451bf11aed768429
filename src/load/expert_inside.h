/* expert_inside.h: the expert cache as its two files see it: expert_cache.c decides what is in
 * memory, expert_read.c reads. */
#ifndef WEIR_LOAD_EXPERT_INSIDE_H
#define WEIR_LOAD_EXPERT_INSIDE_H

#include "base/arena.h"
#include "base/ring.h"
#include "load/expert_cache.h"

#include <pthread.h>

enum { EXPERT_PARTS = 2, EXPERT_MATRICES = 3, EXPERT_MAX_THREADS = 8 };
#define NO_UNIT UINT32_MAX

/* How much a unit is needed, weakest first: one may take the frames of weaker ones. */
enum expert_need {
    NEED_NONE,
    NEED_GUESSED, /* the next layer may choose it */
    NEED_NEXT,    /* the operation behind the present one reads it */
    NEED_NOW,     /* the present operation reads it, and some member has not passed it */
};

enum expert_state {
    UNIT_ABSENT,
    UNIT_QUEUED,
    UNIT_READING,
    UNIT_STORED,  /* in memory, and to be packed when it is used */
    UNIT_PACKING, /* by the members that have come to it */
    UNIT_READY,   /* as the column reads it */
};

struct expert_unit {
    uint8_t state, need;
    bool ahead;        /* read on a guess, and not chosen since */
    uint32_t left;     /* members that have not passed it */
    uint32_t read_for; /* while it is read: 1 + the step that wanted it; 0: a guess */
    uint32_t frame[2]; /* from reading on */
    uint32_t next;     /* in its queue */
    float uses;        /* steps that chose it, halved every so many steps ... */
    uint32_t used_at;  /* ... as of this step */
};

struct expert_queue {
    uint32_t first, last; /* units; NO_UNIT: none */
};

/* One matrix's memory; free ones are linked through `unit`. */
struct expert_frame {
    uint32_t unit;
    struct weight w;
};

/* A unit that members pack, panel by panel, into the frames `to`. */
struct expert_packing {
    uint32_t unit; /* NO_UNIT: none; never more than one, as all visit units in one order */
    uint32_t to[2];
    uint32_t next, done, panels;
};

struct expert_file {
    int fd;
    bool direct;
};

/* What to read for one matrix: one or two stretches of a file, and where in the frame they lie. */
struct expert_stretch {
    const struct expert_file *file;
    const struct shard_tensor *last; /* the tensor it ends with, for messages */
    uint64_t offset;
    size_t bytes, need, at;
};
struct expert_plan {
    uint32_t n;
    struct expert_stretch stretch[2];
    size_t data_at, scale_at, frame_bytes;
};

struct expert_cache {
    struct expert_source source;
    struct expert_setup setup;
    const struct model *m;
    const struct shards *shards;
    const struct expert_home *home;
    const struct weight *shape;
    struct expert_file *file; /* [shards] */
    struct arena frames;
    size_t frame_bytes;
    uint32_t n_frames, n_units;
    enum expert_way way;

    pthread_mutex_t lock;
    pthread_cond_t ready; /* members wait here for units */
    pthread_cond_t work;  /* readers wait here for units to read and for frames */

    /* under the lock */
    struct expert_unit *unit; /* [layers][parts][experts] */
    struct expert_frame *frame;
    uint32_t free_frames, n_free;
    uint32_t spares; /* of the free ones, kept to pack into */
    struct expert_packing packing;
    struct expert_queue now, after, guesses; /* for this operation, the next, the next layer */
    uint32_t *visit[EXPERT_PARTS], n_visit[EXPERT_PARTS]; /* units of the present layer */
    uint32_t *guessed, n_guessed, most_guessed;           /* units guessed at for the next one */
    uint32_t *order;
    uint32_t begun; /* calls of begin so far: `members` for each operation */
    uint32_t layer, step;
    uint64_t dice; /* for picking victims */
    uint32_t reading;
    uint64_t reading_bytes;
    double reading_since;
    bool failed, closing;
    bool passes; /* the present operation began after the failure: nothing is read for it */
    weir_error failure;
    weir_expert_stats stats, told; /* told: as of the last line in the log */
    double stalled, told_stalled;  /* seconds, of all members together */
    double told_at;

    pthread_t thread[EXPERT_MAX_THREADS];
    uint32_t n_threads;
};

static inline uint32_t unit_layer(const struct expert_cache *c, uint32_t u) {
    return u / c->m->experts / EXPERT_PARTS;
}
static inline enum expert_part unit_part(const struct expert_cache *c, uint32_t u) {
    return (enum expert_part)(u / c->m->experts % EXPERT_PARTS);
}
static inline uint32_t unit_expert(const struct expert_cache *c, uint32_t u) {
    return u % c->m->experts;
}
static inline uint32_t unit_frames(enum expert_part part) {
    return part == EXPERT_UP ? 2 : 1;
}
/* Index into home and shape of the matrix in frame i of a unit. */
static inline size_t unit_matrix(const struct expert_cache *c, uint32_t u, uint32_t i) {
    size_t kind = unit_part(c, u) == EXPERT_UP ? 2 * i : 1; /* w1 and w3, or w2 */
    return ((size_t)unit_layer(c, u) * EXPERT_MATRICES + kind) * c->m->experts + unit_expert(c, u);
}
static inline unsigned char *frame_memory(const struct expert_cache *c, uint32_t frame) {
    return c->frames.base + (size_t)frame * c->frame_bytes;
}

/* expert_read.c */
struct expert_plan expert_plan_of(const struct expert_cache *c, size_t matrix);
weir_status expert_files_open(struct expert_cache *c, const char *dir, weir_error *err);
void expert_files_close(struct expert_cache *c);
bool expert_readers_open(struct expert_cache *c);
void expert_readers_close(struct expert_cache *c);

/* expert_cache.c, under the lock: the next unit to read, with its frames; NO_UNIT: none now. */
uint32_t expert_next(struct expert_cache *c);
/* Its read of so many bytes has ended; why: NULL, or what the failure is. */
void expert_read_ended(struct expert_cache *c, uint32_t u, uint64_t bytes, const weir_error *why);

#endif
