/* team.c: fork and join over futexes. Called by forward's step runner and by benches.
 * Invariant that bites: a member must never wait on a word that a faster member may already have
 * moved on twice; the generation counters only grow, and a waiter compares for inequality with the
 * value it saw before it arrived. */
#include "base/team.h"

#include "base/cpu.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tens of microseconds, as a pause takes 40 to 140 cycles: longer than most gaps between two
 * operations of a step, short beside a neighbour's time slice. */
enum { SPIN_ROUNDS = 500 };

struct gate {
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
};

struct team {
    struct gate start, barrier;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) void (*fn)(void *, uint32_t);
    void *arg;
    uint32_t threads, spin;
    _Atomic bool closing;
    pthread_t *thread;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void gate_open(struct gate *g) {
    atomic_fetch_add(&g->generation, 1);
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void gate_wait(struct gate *g, uint32_t seen, uint32_t spin) {
    for (uint32_t i = 0; i < spin; i++) {
        if (atomic_load_explicit(&g->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->generation) == seen)
        syscall(SYS_futex, &g->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

void team_barrier(struct team *t) {
    if (t->threads == 1)
        return;
    uint32_t seen = atomic_load(&t->barrier.generation);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == t->threads) {
        atomic_store(&t->arrived, 0);
        gate_open(&t->barrier);
    } else {
        gate_wait(&t->barrier, seen, t->spin);
    }
}

struct member {
    struct team *team;
    uint32_t index;
};

static void *member_main(void *p) {
    struct member m = *(struct member *)p;
    free(p);
    struct team *t = m.team;
    uint32_t seen =
        0; /* the generation at creation: the first team_run may come before this thread starts */
    for (;;) {
        gate_wait(&t->start, seen, t->spin);
        seen++;
        if (atomic_load(&t->closing))
            return NULL;
        t->fn(t->arg, m.index);
        team_barrier(t);
    }
}

struct team *team_open(uint32_t threads) {
    struct team *t = aligned_alloc(64, (sizeof *t + 63) & ~(size_t)63);
    if (!t)
        return NULL;
    *t = (struct team){.threads = 1};
    /* With fewer cores than members, polling only takes the core from the one we wait for. */
    t->spin = cpu_count() >= threads ? SPIN_ROUNDS : 0;
    t->thread = calloc(threads, sizeof *t->thread);
    if (!t->thread) {
        free(t);
        return NULL;
    }
    uint32_t made = 1;
    for (; made < threads; made++) {
        struct member *m = malloc(sizeof *m);
        if (!m)
            break;
        *m = (struct member){t, made};
        if (pthread_create(&t->thread[made], NULL, member_main, m) != 0) {
            free(m);
            break;
        }
    }
    t->threads = made; /* members only read it after the first gate_open, which orders this store */
    if (made < threads) {
        team_close(t);
        return NULL;
    }
    return t;
}

void team_close(struct team *t) {
    if (!t)
        return;
    atomic_store(&t->closing, true);
    gate_open(&t->start);
    for (uint32_t i = 1; i < t->threads; i++)
        pthread_join(t->thread[i], NULL);
    free(t->thread);
    free(t);
}

uint32_t team_threads(const struct team *t) {
    return t->threads;
}

void team_run(struct team *t, void (*fn)(void *, uint32_t), void *arg) {
    if (t->threads == 1) {
        fn(arg, 0);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    gate_open(&t->start);
    fn(arg, 0);
    team_barrier(t);
}
