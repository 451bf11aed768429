/* emu.c: one block of a kernel as fibers: who runs, who waits, what lanes hand each other.
 * Invariant that bites: a lane may be one meeting ahead of a slow one of its wave and no more, so
 * that two gatherings, used in turn, are enough. */
#include "ops/gpu/emu/emu.h"

#include "base/error.h"
#include "base/rng.h"
#include "ops/gpu/emu/fiber.h"
#include "ops/gpu/emu/switch.h"

#include <stdarg.h>
#include <string.h>

enum {
    PARTS_MOST = 16,   /* of a block that may meet by themselves */
    MOST_COPIES = 128, /* that one thread may have under way */
    READY_WORDS = EMU_MAX_THREADS / 64,
    EMU_MAX_BLOCKS = 16, /* of a cluster */
    MOST_BOXES = 256,    /* under way to the blocks of a cluster */
    PANEL_COLS = 64,
};

struct copy {
    void *to;
    const void *from;
    bool there;
    uint32_t commit;
};
/* A box on its way. */
struct box {
    struct emu_map map;
    uint32_t col, row, step;
    uint16_t *panel;
    const uint64_t *gate;
};
enum state { READY, AT_BARRIER, AT_CLUSTER_MEETING, AT_MEETING, AT_PLACE, RETURNED };
struct fiber {
    struct context context;
    struct emu_place place;
    enum state state;
    int line, cluster_line;
    bool arrived; /* at meeting number `meeting` of the cluster */
    uint32_t meeting;
    const void *waits_for; /* AT_PLACE: the part's count, or the gate */
    struct copy copy[MOST_COPIES];
    uint32_t n_copies, commits;
};
struct wave {
    struct emu_gathering gathering[2];
    uint32_t arrived, generation;
    enum emu_kind kind;
};
/* Blocks that run together: one, or a cluster. */
struct block {
    const struct emu_launch *launch;
    struct fiber *fiber;
    struct wave *wave;
    uint64_t ready[READY_WORDS];
    unsigned char *shared; /* of all blocks of the cluster, `stride` apart */
    size_t stride;
    struct context outside;
    uint32_t blocks, threads; /* that run together, and all their threads */
    uint32_t running, at_barrier[EMU_MAX_BLOCKS], returned, returned_of[EMU_MAX_BLOCKS];
    uint32_t at_cluster, meetings;
    uint32_t in_part[EMU_MAX_BLOCKS][PARTS_MOST]; /* who has come */
    struct emu_map map[EMU_MAX_BLOCKS][EMU_MAPS_MOST];
    struct box box[MOST_BOXES];
    uint32_t n_boxes;
    uint64_t drawn;
    bool failed;
    weir_error *err;
};

static struct block *block; /* the one that runs */

static struct fiber *running(void) {
    return &block->fiber[block->running];
}

const struct emu_place *emu_here(void) {
    return &running()->place;
}

/* The block ends here; its fibers are left as they are. */
static void __attribute__((format(printf, 1, 2), noreturn)) fault(const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const struct emu_place *p = emu_here();
    weir_fail(block->err, WEIR_BAD_VALUE, "kernel", "block %u,%u: %s", p->block_x, p->block_y,
              text);
    block->failed = true;
    context_change(&running()->context, &block->outside, true);
    abort();
}

static const char *waits_at(const struct fiber *f) {
    switch (f->state) {
    case READY: return "runs";
    case AT_BARRIER: return "waits at a barrier";
    case AT_CLUSTER_MEETING: return "waits for its cluster";
    case AT_MEETING: return "waits for its wave";
    case AT_PLACE: return "waits for a part of its block";
    case RETURNED: return "has returned";
    }
    return "?";
}

/* Nobody can run: names one that waits and one that it will never meet. */
static void __attribute__((noreturn)) deadlock(void) {
    uint32_t n = block->threads, waiting = n;
    for (uint32_t i = 0; i < n && waiting == n; i++)
        if (block->fiber[i].state != RETURNED)
            waiting = i;
    const struct fiber *f = &block->fiber[waiting];
    for (uint32_t i = 0; i < n; i++)
        if (block->fiber[i].state != f->state)
            fault("thread %u %s, thread %u %s", waiting, waits_at(f), i,
                  waits_at(&block->fiber[i]));
    fault("thread %u %s, and so do all others", waiting, waits_at(f));
}

/* Bits of `ready` are threads that can run. */
static void set_ready(uint32_t thread, bool ready) {
    uint64_t bit = (uint64_t)1 << thread % 64;
    block->fiber[thread].state = READY;
    block->ready[thread / 64] =
        ready ? block->ready[thread / 64] | bit : block->ready[thread / 64] & ~bit;
}

/* The lowest that can run among threads [from, to), or the highest; false: none can. */
static bool find_ready(uint32_t from, uint32_t to, bool highest, uint32_t *found) {
    for (uint32_t i = from; i < to; i++) {
        uint32_t at = highest ? from + to - 1 - i : i;
        uint64_t word = block->ready[at / 64];
        if (word >> at % 64 & 1) {
            *found = at;
            return true;
        }
        if (!word) /* none of these 64: on to the next */
            i += highest ? at % 64 : 63 - at % 64;
    }
    return false;
}

/* Number of a fiber among all. */
static uint32_t number_of(const struct fiber *f) {
    return (uint32_t)(f - block->fiber);
}

/* Mostly a thread of the same wave, from one end or the other; else anybody. */
static bool find_any(uint32_t *found) {
    const struct emu_launch *l = block->launch;
    uint64_t bits = rng_at(l->seed, 1, block->drawn++);
    uint32_t wave = block->running / l->wave * l->wave;
    uint32_t from = (uint32_t)(bits >> 8) % block->threads;
    if (bits % 8 && find_ready(wave, wave + l->wave, bits & 16, found))
        return true;
    return find_ready(from, block->threads, false, found) || find_ready(0, from, false, found);
}

/* The next to run; or deadlock. No order is fair: the first threads, the last or, at random, those
 * of one wave come as far as they can before others move. */
static uint32_t next_ready(void) {
    uint32_t n = block->threads, found = 0;
    bool any = false;
    switch (block->launch->order) {
    case EMU_FORWARD: any = find_ready(0, n, false, &found); break;
    case EMU_REVERSE: any = find_ready(0, n, true, &found); break;
    case EMU_RANDOM:
    case EMU_ORDERS: any = find_any(&found); break;
    }
    if (!any)
        deadlock();
    return found;
}

/* The running fiber has to wait. */
static void wait_as(enum state state) {
    struct fiber *me = running();
    set_ready(number_of(me), false);
    me->state = state;
    uint32_t next = next_ready();
    block->running = next;
    context_change(&me->context, &block->fiber[next].context, false);
}

/* The fiber is the last of n from `from` on to come here: all of them can run. */
static void end_meeting(uint32_t from, uint32_t n, enum state state) {
    const struct fiber *me = running();
    for (uint32_t i = from; i < from + n; i++) {
        struct fiber *f = &block->fiber[i];
        if (f->line != me->line)
            fault("thread %u meets thread %u at different barriers, lines %d and %d",
                  f->place.thread, me->place.thread, f->line, me->line);
        if (f->state == state)
            set_ready(i, true);
    }
}

void emu_barrier(int line) {
    struct fiber *me = running();
    const uint32_t rank = me->place.rank, n = block->launch->threads;
    me->line = line;
    if (++block->at_barrier[rank] < n) {
        wait_as(AT_BARRIER);
        return;
    }
    block->at_barrier[rank] = 0;
    end_meeting(rank * n, n, AT_BARRIER);
}

void emu_cluster_arrive(int line) {
    struct fiber *me = running();
    if (me->arrived)
        fault("thread %u arrives at its cluster's meeting twice", me->place.thread);
    me->cluster_line = line;
    me->arrived = true;
    me->meeting = block->meetings;
    if (++block->at_cluster < block->threads)
        return;
    for (uint32_t i = 0; i < block->threads; i++) {
        const struct fiber *f = &block->fiber[i];
        if (f->cluster_line != line)
            fault("thread %u meets thread %u at different meetings of their cluster, lines %d and "
                  "%d",
                  f->place.thread, me->place.thread, f->cluster_line, line);
        if (f->state == AT_CLUSTER_MEETING)
            set_ready(i, true);
    }
    block->at_cluster = 0;
    block->meetings++;
}

void emu_cluster_wait(void) {
    struct fiber *me = running();
    if (!me->arrived)
        fault("thread %u waits for a meeting of its cluster that it did not come to",
              me->place.thread);
    me->arrived = false;
    if (me->meeting == block->meetings)
        wait_as(AT_CLUSTER_MEETING);
}

static void wait_for(const void *place) {
    running()->waits_for = place;
    wait_as(AT_PLACE);
}
static void release(const void *place) {
    for (uint32_t i = 0; i < block->threads; i++)
        if (block->fiber[i].state == AT_PLACE && block->fiber[i].waits_for == place)
            set_ready(i, true);
}

void emu_part_barrier(uint32_t part, uint32_t threads) {
    uint32_t *come = &block->in_part[running()->place.rank][part];
    WEIR_ASSERT(part < PARTS_MOST);
    if (++*come < threads) {
        wait_for(come);
        return;
    }
    *come = 0;
    release(come);
}

/* A gate as it lies in shared memory. */
struct gate {
    uint16_t count, missing;
    unsigned odd : 1;  /* it has opened an odd number of times */
    signed bytes : 31; /* that it waits for */
};
_Static_assert(sizeof(struct gate) == sizeof(uint64_t), "a gate is 8 bytes");
enum { UNSET = 0xFFFF /* as shared memory is at first */ };

static struct gate *gate_at(uint64_t *g) {
    struct gate *gate = (struct gate *)(void *)g;
    if (gate->count == UNSET)
        fault("thread %u comes to a gate that was not set", running()->place.thread);
    return gate;
}

void emu_gate_set(uint64_t *g, uint32_t count) {
    *(struct gate *)(void *)g = (struct gate){(uint16_t)count, (uint16_t)count, 0, 0};
}

/* 16 bytes of a row in the place that products look for them. */
static void deliver(const struct box *b) {
    const struct emu_map *m = &b->map;
    const char *from = (const char *)m->from + b->step * m->step_bytes;
    for (uint32_t r = 0; r < m->high; r++)
        for (uint32_t c = 0; c < PANEL_COLS; c++) {
            const uint32_t row = b->row + r, col = b->col + c;
            uint16_t v = 0;
            if (row < m->rows && col < m->cols && b->step < m->steps)
                memcpy(&v, from + row * m->row_bytes + col * sizeof v, sizeof v);
            b->panel[r * PANEL_COLS + ((c / 8 ^ r % 8) * 8 + c % 8)] = v;
        }
}

/* Opens if nothing is missing any longer. */
static void try_gate(struct gate *gate) {
    uint32_t kept = 0;
    if (gate->missing || gate->bytes)
        return;
    gate->missing = gate->count;
    gate->odd ^= 1;
    for (uint32_t i = 0; i < block->n_boxes; i++)
        if ((const void *)block->box[i].gate == gate)
            deliver(&block->box[i]);
        else
            block->box[kept++] = block->box[i];
    block->n_boxes = kept;
    release(gate);
}

static void arrive_at(struct gate *gate) {
    if (!gate->missing)
        fault("thread %u arrives at a gate that waits for bytes alone", running()->place.thread);
    gate->missing--;
    try_gate(gate);
}
void emu_gate_arrive(uint64_t *g) {
    arrive_at(gate_at(g));
}
void emu_gate_expect(uint64_t *g, uint32_t bytes) {
    struct gate *gate = gate_at(g);
    gate->bytes += (int)bytes;
    arrive_at(gate);
}
void emu_gate_arrive_at(uint64_t *g, uint32_t rank) {
    arrive_at(gate_at(emu_shared_of(g, rank, sizeof *g)));
}

void emu_gate_wait(uint64_t *g, uint32_t parity) {
    const struct gate *gate = gate_at(g);
    while (gate->odd == parity % 2)
        wait_for(gate);
}

void emu_map_make(uint32_t n, const struct emu_map *map) {
    emu_check_aligned(map->from);
    if (n >= EMU_MAPS_MOST || map->row_bytes % 16 || map->step_bytes % 16 || !map->high ||
        map->high > 256)
        fault("thread %u makes map %u of rows %llu and steps %llu bytes apart, boxes of %u rows",
              running()->place.thread, n, (unsigned long long)map->row_bytes,
              (unsigned long long)map->step_bytes, map->high);
    block->map[running()->place.rank][n] = *map;
}
const struct emu_map *emu_map_made(uint32_t n) {
    const struct emu_map *map = &block->map[running()->place.rank][n < EMU_MAPS_MOST ? n : 0];
    if (n >= EMU_MAPS_MOST || !map->high)
        fault("thread %u wants map %u, which was not made", running()->place.thread, n);
    return map;
}

void emu_copy_box(uint16_t *panel, const struct emu_map *map, uint32_t col, uint32_t row,
                  uint32_t step, uint64_t *gate, uint32_t members) {
    const uint32_t n = members ? members : 1;
    const size_t bytes = map->high * PANEL_COLS * sizeof *panel;
    if ((uintptr_t)panel % 1024)
        fault("thread %u copies a box to no multiple of 1024", running()->place.thread);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rank = members ? i : running()->place.rank;
        struct box b = {*map,
                        col,
                        row,
                        step,
                        emu_shared_of(panel, rank, bytes),
                        emu_shared_of(gate, rank, sizeof *gate)};
        struct gate *g = gate_at((uint64_t *)emu_shared_of(gate, rank, sizeof *gate));
        if (block->n_boxes == MOST_BOXES)
            fault("more than %d boxes are under way", MOST_BOXES);
        memset(b.panel, 0xFF, bytes);
        block->box[block->n_boxes++] = b;
        g->bytes -= (int)bytes;
        try_gate(g);
    }
}

const struct emu_gathering *emu_meet(enum emu_kind kind, const void *gift, size_t bytes,
                                     void (*finish)(struct emu_gathering *)) {
    struct fiber *me = running();
    uint32_t lanes = block->launch->wave, lane = me->place.thread % lanes;
    struct wave *w = &block->wave[number_of(me) / lanes];
    struct emu_gathering *g = &w->gathering[w->generation % 2];
    if (w->arrived && w->kind != kind)
        fault("thread %u of a wave meets others that do something else", me->place.thread);
    w->kind = kind;
    if (bytes)
        memcpy(g->gift[lane].bytes, gift, bytes);
    if (++w->arrived < lanes) {
        wait_as(AT_MEETING);
        return g;
    }
    if (finish)
        finish(g);
    w->arrived = 0;
    w->generation++;
    for (uint32_t i = 0; i < lanes; i++)
        set_ready(number_of(me) - lane + i, true);
    return g;
}

void *emu_shared(size_t bytes) {
    if (bytes > block->launch->shared_bytes)
        fault("wants %zu bytes of shared memory, launched with %zu", bytes,
              block->launch->shared_bytes);
    return block->shared + running()->place.rank * block->stride;
}

void *emu_shared_of(void *p, uint32_t rank, size_t bytes) {
    const struct emu_place *here = emu_here();
    const size_t at = (size_t)((unsigned char *)p - block->shared) - here->rank * block->stride;
    if (rank >= block->blocks || at + bytes > block->launch->shared_bytes)
        fault("thread %u writes to no shared memory of block %u of a cluster of %u", here->thread,
              rank, block->blocks);
    if (block->returned_of[rank] == block->launch->threads)
        fault("thread %u reaches for block %u of its cluster, which has ended", here->thread, rank);
    return block->shared + rank * block->stride + at;
}

void emu_check_aligned(const void *p) {
    if ((uintptr_t)p % 16)
        fault("thread %u: 16 bytes at an address that is no multiple of 16",
              running()->place.thread);
}

void emu_check_aligned_8(const void *p) {
    if ((uintptr_t)p % 8)
        fault("thread %u: 8 bytes at an address that is no multiple of 8", running()->place.thread);
}

void emu_copy16(void *to, const void *from, bool there) {
    struct fiber *me = running();
    emu_check_aligned(to);
    emu_check_aligned(from);
    if (me->n_copies == MOST_COPIES)
        fault("thread %u has more than %d copies under way", me->place.thread, MOST_COPIES);
    me->copy[me->n_copies++] = (struct copy){to, from, there, me->commits};
}

void emu_copy_commit(void) {
    running()->commits++;
}

void emu_copy_wait(uint32_t behind) {
    struct fiber *me = running();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < me->n_copies; i++) {
        struct copy c = me->copy[i];
        if (c.commit + behind >= me->commits)
            me->copy[kept++] = c;
        else if (c.there)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    me->n_copies = kept;
}

static void begin_fiber(void) {
    context_arrived(&block->outside);
    block->launch->kernel(block->launch->record);
    struct fiber *me = running();
    if (me->n_copies)
        fault("thread %u returns and leaves %u copies under way", me->place.thread, me->n_copies);
    set_ready(number_of(me), false);
    me->state = RETURNED;
    block->returned_of[me->place.rank]++;
    if (block->returned + 1 == block->threads && block->n_boxes)
        fault("the last thread returns and leaves %u boxes under way", block->n_boxes);
    if (++block->returned == block->threads)
        context_change(&me->context, &block->outside, true);
    block->running = next_ready();
    context_change(&me->context, &running()->context, true);
    abort();
}

/* The block, or the cluster that begins with it. */
static void run_block(uint32_t x, uint32_t y, void *stacks) {
    const struct emu_launch *l = block->launch;
    for (uint32_t i = 0; i < block->threads; i++) {
        struct fiber *f = &block->fiber[i];
        const uint32_t rank = i / l->threads;
        context_prepare(&f->context, stacks, i, begin_fiber);
        f->place = (struct emu_place){i % l->threads, l->threads, x + rank,     y,
                                      l->blocks_x,    rank,       block->blocks};
        set_ready(i, true);
        f->n_copies = f->commits = 0;
        f->arrived = false;
    }
    for (uint32_t i = 0; i < block->threads / l->wave; i++)
        block->wave[i].arrived = block->wave[i].generation = 0;
    memset(block->at_barrier, 0, sizeof block->at_barrier);
    block->at_cluster = block->meetings = block->returned = 0;
    memset(block->in_part, 0, sizeof block->in_part);
    memset(block->returned_of, 0, sizeof block->returned_of);
    memset(block->map, 0, sizeof block->map);
    block->n_boxes = 0;
    memset(block->shared, 0xFF, (block->blocks - 1) * block->stride + l->shared_bytes);
    block->running = 0;
    block->running = next_ready();
    context_change(&block->outside, &running()->context, false);
}

/* Block numbers in the order that they run in. */
static void order_blocks(const struct emu_launch *l, uint32_t *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        list[i] = l->order == EMU_REVERSE ? n - 1 - i : i;
    for (uint32_t i = n; l->order == EMU_RANDOM && i > 1; i--) {
        uint32_t other = (uint32_t)(rng_at(l->seed, 2, i) % i), was = list[i - 1];
        list[i - 1] = list[other];
        list[other] = was;
    }
}

/* Stacks for as many fibers, kept for the next launch: making them anew for each costs more than
 * most kernels take. */
static void *stacks_for(uint32_t threads) {
    static void *stacks;
    static uint32_t n;
    if (n < threads) {
        if (stacks)
            context_stacks_free(stacks, n);
        stacks = context_stacks(threads);
        n = stacks ? threads : 0;
    }
    return stacks;
}

weir_status emu_run(const struct emu_launch *l, weir_error *err) {
    const uint32_t blocks = l->cluster ? l->cluster : 1, threads = l->threads * blocks;
    WEIR_ASSERT(l->threads > 0 && l->threads % l->wave == 0 && threads <= EMU_MAX_THREADS &&
                blocks <= EMU_MAX_BLOCKS && l->blocks_x % blocks == 0);
    uint32_t n = l->blocks_x / blocks * l->blocks_y;
    void *stacks = stacks_for(threads), *shared = NULL;
    uint32_t *list = malloc((n ? n : 1) * sizeof *list);
    struct block b = {.launch = l, .err = err, .blocks = blocks, .threads = threads};
    b.fiber = calloc(threads, sizeof *b.fiber);
    b.wave = calloc(threads / l->wave, sizeof *b.wave);
    /* To the byte, so that a sanitizer sees what reaches beyond it. */
    b.stride = (l->shared_bytes + 1023) / 1024 * 1024;
    const size_t bytes = (blocks - 1) * b.stride + l->shared_bytes;
    bool taken = posix_memalign(&shared, 1024, bytes ? bytes : 1) == 0;
    b.shared = shared;
    bool ready = stacks && list && b.fiber && b.wave && taken;
    if (ready) {
        order_blocks(l, list, n);
        block = &b;
        for (uint32_t i = 0; i < n && !b.failed; i++)
            run_block(list[i] % (l->blocks_x / blocks) * blocks, list[i] / (l->blocks_x / blocks),
                      stacks);
        block = NULL;
    }
    if (b.failed)
        context_stacks_left(stacks, threads);
    if (taken)
        free(shared);
    free(b.wave);
    free(b.fiber);
    free(list);
    if (!ready)
        return weir_fail(err, WEIR_NO_MEMORY, "kernel", "no memory for %u fibers", threads);
    return b.failed ? WEIR_BAD_VALUE : WEIR_OK;
}
