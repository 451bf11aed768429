/* expert_cache.c: which experts are in memory. Called by the operations on experts through their
 * source, and by the readers for what to read next.
 *
 * All members of the team visit the experts of an operation in one order: those in memory, those
 * being read, then those to be read in the order of the queue. Units get their frames in that order
 * too, so that whoever waits for a unit waits for nothing behind it: a cache of one up unit is
 * slow, but comes to the end.
 * Invariants that bite: only what the present operation still needs holds its frames against
 * everybody. If what the next one needs did as well, a small cache would be full of w2 while all
 * members wait for w1. And the frames to pack into are never read into: a cache full of units that
 * wait to be packed would wait forever. */
#include "load/expert_inside.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/plural.h"
#include "base/rng.h"
#include "ops/pack.h"

#include <math.h>
#include <string.h>

enum {
    HALF_LIFE = 32, /* steps in which a use loses half of its weight */
    SAMPLES = 32,   /* frames looked at to find a victim among */
    LOG_EVERY = 60, /* seconds */
};

/* ------------------------------------------------------------------------------------------------
 * queues */

static void queue_add(struct expert_cache *c, struct expert_queue *q, uint32_t u) {
    c->unit[u].next = NO_UNIT;
    c->unit[u].state = UNIT_QUEUED;
    if (q->first == NO_UNIT)
        q->first = u;
    else
        c->unit[q->last].next = u;
    q->last = u;
}

/* Before all others: for a unit that those behind it must not overtake. */
static void queue_first(struct expert_cache *c, struct expert_queue *q, uint32_t u) {
    if (q->first == NO_UNIT)
        q->last = u;
    c->unit[u].next = q->first;
    c->unit[u].state = UNIT_QUEUED;
    q->first = u;
}

/* What was queued and not begun is absent again. */
static void queue_empty(struct expert_cache *c, struct expert_queue *q) {
    for (uint32_t u = q->first; u != NO_UNIT; u = c->unit[u].next)
        c->unit[u].state = UNIT_ABSENT;
    q->first = NO_UNIT;
}

/* ------------------------------------------------------------------------------------------------
 * frames */

static float uses_now(const struct expert_cache *c, const struct expert_unit *u) {
    return u->uses * exp2f(-(float)(c->step - u->used_at) / HALF_LIFE);
}

/* What is best given up has been used least; of units used about as often, the one whose layer
 * comes last from here on. An order of last use would be the worst one, since layers take turns:
 * what was used longest ago is what is needed next. Smaller: rather. */
static float worth(const struct expert_cache *c, uint32_t u) {
    float uses = uses_now(c, &c->unit[u]);
    float level = uses > 0x1p-20f ? floorf(2 * log2f(uses)) : -40;
    uint32_t layers = c->m->layers, away = (unit_layer(c, u) + layers - c->layer) % layers;
    away = away ? away : layers; /* the present layer's next turn is a whole round away */
    return level - (float)away / (float)(layers + 1);
}

/* Is a unit in memory that one with this need may replace? */
static bool replaceable(const struct expert_cache *c, uint32_t u, enum expert_need need) {
    if (u == NO_UNIT)
        return false;
    const struct expert_unit *unit = &c->unit[u];
    bool there = unit->state == UNIT_READY || unit->state == UNIT_STORED;
    return there && unit->left == 0 && unit->need < need;
}

static uint32_t better_victim(const struct expert_cache *c, uint32_t a, uint32_t b) {
    if (a == NO_UNIT || c->unit[b].need < c->unit[a].need)
        return b;
    if (c->unit[b].need > c->unit[a].need)
        return a;
    return worth(c, b) < worth(c, a) ? b : a;
}

static uint32_t find_victim(struct expert_cache *c, enum expert_need need) {
    uint32_t victim = NO_UNIT;
    if (c->n_frames > SAMPLES) {
        for (int i = 0; i < SAMPLES; i++) {
            uint64_t r = rng_at(1, 2, c->dice++);
            uint32_t u = c->frame[(r >> 32) * c->n_frames >> 32].unit;
            if (replaceable(c, u, need))
                victim = better_victim(c, victim, u);
        }
        if (victim != NO_UNIT && c->unit[victim].need == NEED_NONE)
            return victim;
    }
    for (uint32_t f = 0; f < c->n_frames; f++) /* few frames, or hardly any to be had */
        if (replaceable(c, c->frame[f].unit, need))
            victim = better_victim(c, victim, c->frame[f].unit);
    return victim;
}

static uint32_t pop_frame(struct expert_cache *c) {
    uint32_t f = c->free_frames;
    c->free_frames = c->frame[f].w.rows;
    c->n_free--;
    return f;
}

static void push_frame(struct expert_cache *c, uint32_t f) {
    c->frame[f].unit = NO_UNIT;
    c->frame[f].w.rows = c->free_frames; /* the next free one */
    c->free_frames = f;
    c->n_free++;
}

static void free_frames(struct expert_cache *c, uint32_t u) {
    for (uint32_t i = 0; i < unit_frames(unit_part(c, u)); i++)
        push_frame(c, c->unit[u].frame[i]);
    c->unit[u].state = UNIT_ABSENT;
    c->unit[u].need = NEED_NONE;
    c->unit[u].ahead = false;
}

static bool take_frames(struct expert_cache *c, uint32_t u) {
    struct expert_unit *unit = &c->unit[u];
    uint32_t n = unit_frames(unit_part(c, u));
    while (c->n_free < n + c->spares) {
        uint32_t victim = find_victim(c, (enum expert_need)unit->need);
        if (victim == NO_UNIT)
            return false;
        free_frames(c, victim);
        c->stats.evictions++;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t f = pop_frame(c);
        c->frame[f].unit = u;
        unit->frame[i] = f;
        size_t at = unit_matrix(c, u, i);
        struct expert_plan p = expert_plan_of(c, at);
        c->frame[f].w = c->shape[at];
        c->frame[f].w.data = frame_memory(c, f) + p.data_at;
        c->frame[f].w.scale = c->home[at].scale ? frame_memory(c, f) + p.scale_at : NULL;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------
 * packing: by the members that come to a unit. They would wait for it anyway, what is read on a
 * wrong guess costs nothing, and what has just been packed is still in their caches. */

static enum packing packing_of(const struct expert_cache *c, size_t matrix) {
    const struct column *column = c->setup.column;
    const struct weight *w = &c->shape[matrix];
    enum packing p = column && column->packing ? column->packing(w, c->setup.dense) : PACK_NONE;
    return pack_bytes(w, p) ? p : PACK_NONE;
}

static bool is_packed(const struct expert_cache *c, uint32_t u) {
    for (uint32_t i = 0; i < unit_frames(unit_part(c, u)); i++)
        if (packing_of(c, unit_matrix(c, u, i)) != PACK_NONE)
            return true;
    return false;
}

/* Panels to make of the matrix in frame i of a unit; 0: it stays as it is stored. */
static uint32_t panels_of(const struct expert_cache *c, uint32_t u, uint32_t i) {
    size_t at = unit_matrix(c, u, i);
    return packing_of(c, at) == PACK_NONE ? 0 : pack_panels(c->shape[at].rows);
}

static void begin_packing(struct expert_cache *c, uint32_t u) {
    struct expert_packing *p = &c->packing;
    *p = (struct expert_packing){.unit = u};
    for (uint32_t i = 0; i < unit_frames(unit_part(c, u)); i++)
        if (panels_of(c, u, i)) {
            p->to[i] = pop_frame(c);
            p->panels += panels_of(c, u, i);
            c->spares--;
        }
    c->unit[u].state = UNIT_PACKING;
}

static void pack_panel(const struct expert_cache *c, uint32_t panel) {
    const struct expert_packing *p = &c->packing;
    for (uint32_t i = 0; i < unit_frames(unit_part(c, p->unit)); i++) {
        const struct weight *w = &c->frame[c->unit[p->unit].frame[i]].w;
        uint32_t panels = panels_of(c, p->unit, i);
        if (panel < panels) {
            pack_weight(w, packing_of(c, unit_matrix(c, p->unit, i)), frame_memory(c, p->to[i]),
                        (struct work){.index = panel, .count = panels});
            return;
        }
        panel -= panels;
    }
}

/* The frames it was read into are the next ones to pack into. */
static void end_packing(struct expert_cache *c) {
    struct expert_packing *p = &c->packing;
    struct expert_unit *unit = &c->unit[p->unit];
    for (uint32_t i = 0; i < unit_frames(unit_part(c, p->unit)); i++) {
        size_t at = unit_matrix(c, p->unit, i);
        if (!panels_of(c, p->unit, i))
            continue;
        push_frame(c, unit->frame[i]);
        c->spares++;
        unit->frame[i] = p->to[i];
        struct expert_frame *f = &c->frame[p->to[i]];
        *f = (struct expert_frame){.unit = p->unit, .w = c->shape[at]};
        f->w.packing = packing_of(c, at);
        f->w.packed = frame_memory(c, p->to[i]);
    }
    unit->state = UNIT_READY;
    p->unit = NO_UNIT;
    pthread_cond_broadcast(&c->ready);
}

/* Under the lock, which it leaves for a panel at a time. */
static void help_packing(struct expert_cache *c) {
    struct expert_packing *p = &c->packing;
    while (p->next < p->panels) {
        uint32_t panel = p->next++;
        pthread_mutex_unlock(&c->lock);
        pack_panel(c, panel);
        pthread_mutex_lock(&c->lock);
        if (++p->done == p->panels) {
            end_packing(c);
            return;
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * for the readers */

/* A guess may delay what is needed by what is under way when that is asked for. */
enum { GUESS_BYTES = 16 << 20 };

uint32_t expert_next(struct expert_cache *c) {
    struct expert_queue *q = &c->now;
    if (q->first == NO_UNIT)
        q = &c->after;
    if (q->first == NO_UNIT) {
        q = &c->guesses;
        if (q->first == NO_UNIT || c->reading_bytes > GUESS_BYTES)
            return NO_UNIT;
    }
    uint32_t u = q->first;
    if (!take_frames(c, u))
        return NO_UNIT;
    q->first = c->unit[u].next;
    c->unit[u].state = UNIT_READING;
    c->unit[u].ahead = q == &c->guesses;
    c->unit[u].read_for = q == &c->guesses ? 0 : c->step + 1;
    c->stats.ahead_reads += c->unit[u].ahead;
    if (c->reading++ == 0)
        c->reading_since = clock_seconds();
    c->reading_bytes += unit_frames(unit_part(c, u)) * c->frame_bytes;
    return u;
}

void expert_read_ended(struct expert_cache *c, uint32_t u, uint64_t bytes, const weir_error *why) {
    struct expert_unit *unit = &c->unit[u];
    c->reading_bytes -= unit_frames(unit_part(c, u)) * c->frame_bytes;
    if (--c->reading == 0)
        c->stats.read_seconds += clock_seconds() - c->reading_since;
    if (!why) {
        unit->state = is_packed(c, u) ? UNIT_STORED : UNIT_READY;
        c->stats.reads++;
        c->stats.read_bytes += bytes;
    } else {
        uint8_t need = unit->need;
        free_frames(c, u);
        /* A read that was begun as a guess, or for a step that has failed since, says nothing about
         * the present one: it is tried again if that needs the unit. Before the others of its
         * queue: behind them it would lose its frames to units that nobody gives up before this
         * one is there. */
        if (need >= NEED_NEXT && !c->failed && unit->read_for != c->step + 1) {
            unit->need = need;
            queue_first(c, need == NEED_NOW ? &c->now : &c->after, u);
        } else if (need >= NEED_NEXT && !c->failed) {
            c->failed = true;
            c->failure = *why;
            queue_empty(c, &c->now);
            queue_empty(c, &c->after);
        }
        c->stats.read_errors++;
    }
    pthread_cond_broadcast(&c->ready);
    pthread_cond_broadcast(&c->work); /* it can be replaced now */
}

/* ------------------------------------------------------------------------------------------------
 * the source */

static uint32_t unit_of(const struct expert_cache *c, uint32_t layer, enum expert_part part,
                        uint32_t expert) {
    return (layer * EXPERT_PARTS + (uint32_t)part) * c->m->experts + expert;
}

static void choose(struct expert_cache *c, uint32_t u) {
    struct expert_unit *unit = &c->unit[u];
    if (unit->state >= UNIT_STORED)
        c->stats.hits++;
    else
        c->stats.misses++;
    c->stats.guesses_right += unit->need == NEED_GUESSED;
    c->stats.ahead_used += unit->ahead;
    unit->ahead = false;
    unit->uses = uses_now(c, unit) + 1;
    unit->used_at = c->step;
    unit->need = NEED_NEXT;
}

/* What the next layer will choose, if the guess is right: first all that its first operation reads.
 */
static void guess(struct expert_cache *c, const struct op_experts *a, uint32_t n_rows) {
    size_t ids = (size_t)n_rows * a->top_k;
    if (!c->setup.guess || !a->ahead || n_rows > a->ahead_rows)
        return;
    for (int part = EXPERT_UP; part <= EXPERT_DOWN; part++)
        for (size_t i = 0; i < ids && c->n_guessed < c->most_guessed; i++) {
            uint32_t u = unit_of(c, a->ahead_layer, (enum expert_part)part, (uint32_t)a->ahead[i]);
            if (c->unit[u].need != NEED_NONE)
                continue; /* another row's guess as well */
            c->unit[u].need = NEED_GUESSED;
            c->guessed[c->n_guessed++] = u;
            c->stats.guesses++;
            if (c->unit[u].state == UNIT_ABSENT)
                queue_add(c, &c->guesses, u);
        }
}

/* The experts of a layer are known: both parts of them are needed, in this order. */
static void choose_all(struct expert_cache *c, const struct op_experts *a, const uint32_t *experts,
                       uint32_t n, uint32_t n_rows) {
    c->step += a->layer <= c->layer;
    c->layer = a->layer;
    queue_empty(c, &c->guesses);
    for (int part = EXPERT_UP; part <= EXPERT_DOWN; part++) {
        c->n_visit[part] = n;
        for (uint32_t i = 0; i < n; i++) {
            c->visit[part][i] = unit_of(c, a->layer, (enum expert_part)part, experts[i]);
            choose(c, c->visit[part][i]);
        }
    }
    for (uint32_t i = 0; i < c->n_guessed; i++)
        if (c->unit[c->guessed[i]].need == NEED_GUESSED)
            c->unit[c->guessed[i]].need = NEED_NONE;
    c->n_guessed = 0;
    guess(c, a, n_rows);
}

static void queue_absent(struct expert_cache *c, struct expert_queue *q, enum expert_part part) {
    for (uint32_t i = 0; i < c->n_visit[part]; i++)
        if (c->unit[c->visit[part][i]].state == UNIT_ABSENT)
            queue_add(c, q, c->visit[part][i]);
}

/* Needs every unit of this operation, and says in which order they are visited: as they will be
 * there. */
static void begin_part(struct expert_cache *c, enum expert_part part) {
    uint32_t at = 0;
    queue_empty(c, &c->after);
    queue_absent(c, &c->now, part);
    for (int state = UNIT_READY; state >= UNIT_QUEUED; state--)
        for (uint32_t i = 0; i < c->n_visit[part]; i++)
            if (c->unit[c->visit[part][i]].state == state)
                c->order[at++] = i;
    for (uint32_t i = 0; i < c->n_visit[part]; i++) {
        c->unit[c->visit[part][i]].need = NEED_NOW;
        c->unit[c->visit[part][i]].left = c->setup.members;
    }
    if (part == EXPERT_UP)
        queue_absent(c, &c->after, EXPERT_DOWN);
}

static const uint32_t *begin(void *self, const struct op_experts *a, enum expert_part part,
                             const uint32_t *experts, uint32_t n, uint32_t n_rows, struct work w) {
    struct expert_cache *c = self;
    pthread_mutex_lock(&c->lock);
    if (c->begun++ % c->setup.members == 0) {
        c->passes = c->failed;
        for (uint32_t i = 0; i < n && c->passes; i++)
            c->order[i] = i;
        if (!c->passes) {
            if (part == EXPERT_UP)
                choose_all(c, a, experts, n, n_rows);
            begin_part(c, part);
        }
        pthread_cond_broadcast(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
    return c->order;
}

/* Under the lock: until a unit is as the column reads it, or will not be. After a failure a slow
 * member may come to a unit that others have passed: it is not packed beside theirs. */
static void bring(struct expert_cache *c, uint32_t u) {
    const struct expert_unit *unit = &c->unit[u];
    while (unit->state != UNIT_READY) {
        if (unit->state == UNIT_STORED && c->packing.unit == NO_UNIT)
            begin_packing(c, u);
        if (unit->state == UNIT_PACKING && c->packing.next < c->packing.panels) {
            help_packing(c);
            continue;
        }
        if (c->failed && unit->state != UNIT_PACKING)
            return;
        bool reading = unit->state < UNIT_STORED;
        double from = clock_seconds();
        pthread_cond_wait(&c->ready, &c->lock);
        c->stalled += reading ? clock_seconds() - from : 0;
    }
}

static bool acquire(void *self, const struct op_experts *a, enum expert_part part, uint32_t expert,
                    const struct weight *w[2]) {
    struct expert_cache *c = self;
    uint32_t u = unit_of(c, a->layer, part, expert);
    struct expert_unit *unit = &c->unit[u];
    pthread_mutex_lock(&c->lock);
    if (!c->passes)
        bring(c, u);
    bool there = !c->passes && unit->state == UNIT_READY;
    w[0] = there ? &c->frame[unit->frame[0]].w : NULL;
    w[1] = there && part == EXPERT_UP ? &c->frame[unit->frame[1]].w : NULL;
    pthread_mutex_unlock(&c->lock);
    return there;
}

static void release(void *self, const struct op_experts *a, enum expert_part part,
                    uint32_t expert) {
    struct expert_cache *c = self;
    struct expert_unit *unit = &c->unit[unit_of(c, a->layer, part, expert)];
    pthread_mutex_lock(&c->lock);
    if (!c->passes && --unit->left == 0) {
        unit->need = NEED_NONE;
        if (c->now.first != NO_UNIT || c->after.first != NO_UNIT)
            pthread_cond_broadcast(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
}

static void tell(struct expert_cache *c) {
    double now = clock_seconds(), seconds = c->stats.read_seconds - c->told.read_seconds;
    const weir_expert_stats *s = &c->stats, *t = &c->told;
    uint64_t hits = s->hits - t->hits, all = hits + s->misses - t->misses;
    if (now < c->told_at + LOG_EVERY)
        return;
    if (s->read_bytes > t->read_bytes && seconds > 0)
        log_line(LOG_INFO,
                 "expert cache: %.1f %% of %" PRIu64 " %s in memory, %.2f GB read at %.2f "
                 "GB/s, %.1f s waited",
                 100 * (double)hits / (double)(all ? all : 1), all,
                 plural(all, "unit was", "units were"),
                 (double)(s->read_bytes - t->read_bytes) / 1e9,
                 (double)(s->read_bytes - t->read_bytes) / 1e9 / seconds,
                 (c->stalled - c->told_stalled) / c->setup.members);
    c->told = c->stats;
    c->told_stalled = c->stalled;
    c->told_at = now;
}

static bool settle(void *self, weir_error *err) {
    struct expert_cache *c = self;
    pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    if (failed) {
        *err = c->failure;
        c->failed = false;
        for (int part = EXPERT_UP; part <= EXPERT_DOWN; part++) {
            for (uint32_t i = 0; i < c->n_visit[part]; i++)
                c->unit[c->visit[part][i]].need = NEED_NONE;
            c->n_visit[part] = 0;
        }
    }
    tell(c);
    pthread_mutex_unlock(&c->lock);
    return !failed;
}

const struct expert_source *expert_cache_source(struct expert_cache *c) {
    return &c->source;
}

void expert_cache_count(struct expert_cache *c, weir_expert_stats *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    if (c->reading)
        out->read_seconds += clock_seconds() - c->reading_since;
    out->stall_seconds = c->stalled / c->setup.members;
    out->bytes_used = (c->n_frames - c->n_free) * c->frame_bytes;
    pthread_mutex_unlock(&c->lock);
}

/* ------------------------------------------------------------------------------------------------
 * opening */

static weir_status size_frames(struct expert_cache *c, weir_error *err) {
    uint64_t units = 0;
    bool packs = false;
    for (uint32_t l = 0; l < c->m->layers; l++) {
        if (!model_is_moe(c->m, l))
            continue;
        size_t first = (size_t)l * EXPERT_MATRICES * c->m->experts;
        for (size_t i = first; i < first + (size_t)EXPERT_MATRICES * c->m->experts; i++) {
            enum packing p = packing_of(c, i);
            size_t stored = expert_plan_of(c, i).frame_bytes, packed = pack_bytes(&c->shape[i], p);
            size_t bytes = stored > packed ? stored : packed;
            c->frame_bytes = bytes > c->frame_bytes ? bytes : c->frame_bytes;
            packs |= p != PACK_NONE;
        }
        units += (uint64_t)EXPERT_MATRICES * c->m->experts;
    }
    c->frame_bytes = (c->frame_bytes + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
    c->spares = packs ? 2 : 0;
    uint64_t least = 2 + c->spares, frames = c->setup.bytes / c->frame_bytes;
    if (frames < least)
        return weir_fail(err, WEIR_BAD_VALUE, "expert_cache_bytes",
                         "is %" PRIu64 ", less than two matrices of one expert%s take: %" PRIu64,
                         c->setup.bytes, packs ? " and two more to pack them into" : "",
                         least * c->frame_bytes);
    frames = frames < units + c->spares ? frames : units + c->spares;
    c->n_frames = (uint32_t)(frames < UINT32_MAX ? frames : UINT32_MAX - 1);
    return WEIR_OK;
}

static weir_status take_memory(struct expert_cache *c, weir_error *err) {
    uint32_t experts = c->m->experts;
    c->n_units = c->m->layers * EXPERT_PARTS * experts;
    c->most_guessed = EXPERT_PARTS * experts;
    c->unit = calloc(c->n_units, sizeof *c->unit);
    c->frame = calloc(c->n_frames, sizeof *c->frame);
    c->order = calloc(experts, sizeof *c->order);
    c->guessed = calloc(c->most_guessed, sizeof *c->guessed);
    for (int i = 0; i < EXPERT_PARTS; i++)
        c->visit[i] = calloc(experts, sizeof *c->visit[i]);
    if (!c->unit || !c->frame || !c->order || !c->guessed || !c->visit[0] || !c->visit[1] ||
        arena_open(&c->frames, size_mul(c->n_frames, c->frame_bytes)) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "expert_cache_bytes",
                         "no memory for %" PRIu32 " matrices of experts, %zu bytes each",
                         c->n_frames, c->frame_bytes);
    c->free_frames = NO_UNIT;
    for (uint32_t f = c->n_frames; f-- > 0;) {
        c->frame[f] = (struct expert_frame){.unit = NO_UNIT, .w.rows = c->free_frames};
        c->free_frames = f;
    }
    c->n_free = c->n_frames;
    c->now.first = c->after.first = c->guesses.first = c->packing.unit = NO_UNIT;
    c->stats.open = true;
    c->stats.bytes_total = (uint64_t)c->n_frames * c->frame_bytes;
    c->told_at = clock_seconds();
    return WEIR_OK;
}

weir_status expert_cache_open(const char *dir, const struct model *m, const struct shards *shards,
                              const struct expert_home *home, const struct weight *shape,
                              const struct expert_setup *setup, struct expert_cache **out,
                              weir_error *err) {
    *out = NULL;
    struct expert_cache *c = calloc(1, sizeof *c);
    if (!c)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    c->source = (struct expert_source){c, begin, acquire, release, settle};
    c->setup = *setup;
    c->m = m;
    c->shards = shards;
    c->home = home;
    c->shape = shape;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->ready, NULL);
    pthread_cond_init(&c->work, NULL);
    weir_status s = expert_files_open(c, dir, err);
    if (!s)
        s = size_frames(c, err);
    if (!s)
        s = take_memory(c, err);
    if (!s && !expert_readers_open(c))
        s = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory or thread to read its experts");
    if (s) {
        expert_cache_close(c);
        return s;
    }
    *out = c;
    return WEIR_OK;
}

void expert_cache_close(struct expert_cache *c) {
    if (!c)
        return;
    expert_readers_close(c);
    expert_files_close(c);
    arena_close(&c->frames);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->ready);
    pthread_cond_destroy(&c->work);
    for (int i = 0; i < EXPERT_PARTS; i++)
        free(c->visit[i]);
    free(c->guessed);
    free(c->order);
    free(c->frame);
    free(c->unit);
    free(c);
}
