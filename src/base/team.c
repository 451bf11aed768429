/* team.c: fork and join over futexes. Called by forward's step runner and by benches.
 * A wait polls, then sleeps in the kernel. Polling must outlast the waking of a sleeper, else one
 * sleep breeds the next: who was woken comes late to the barrier that follows, the others have gone
 * to sleep by then, and each barrier costs a wake-up until the load changes. So it is bounded by
 * time, not by rounds, whose length varies tenfold between processors. It ends early where it can
 * only do harm: on the core of a member it waits for, and on a core that somebody else has just
 * used. sched_yield would not help: the scheduler may hand the core straight back.
 * Invariant that bites: a member must never wait on a word that a faster member may already have
 * moved on twice; the generation counters only grow, and a waiter compares for inequality with the
 * value it saw before it arrived. */
#include "base/team.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/error.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waking a sleeper takes 5 to 60 us, most where a hypervisor has put its idle core to sleep. A
 * neighbour's slice is 1 ms and more, so little of a stolen core's half is polled away. */
enum { SPIN_NS = 200000 };
/* Between two looks at the clock lie a few microseconds of polling; more means that the core was
 * somebody else's. */
enum { TAKEN_NS = 100000 };
enum { ROUNDS = 16 }; /* of polling between two looks at the clock */
/* How long a core that was taken is left alone, at first and at most. A try that fails may cost a
 * neighbour's slice, a few milliseconds. */
enum { HOLD_NS = 10000000, HOLD_MOST_NS = 160000000 };

struct gate {
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
};

/* What the others may know of a member. */
struct seat {
    struct gate start;                     /* opened when it is to run */
    _Alignas(64) _Atomic uint32_t arrived; /* barriers it has come to */
    _Atomic int32_t core;                  /* where it was last seen */
    _Atomic uint64_t parked;
    uint64_t slept_ns;    /* of the run in progress */
    uint32_t crossed;     /* how often in that run another member was found waiting for its core */
    _Atomic bool crowded; /* in that run its core was taken, or wanted by another member */
    _Alignas(64) _Atomic uint64_t claimed; /* barrier << 32 | units of its own range given out */
};

struct team {
    struct gate barrier;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) void (*fn)(void *, uint32_t);
    void *arg;
    uint32_t threads, started;  /* started: with member 0 */
    _Atomic uint32_t present;   /* members of the run in progress */
    uint32_t room;              /* members that there seem to be cores for */
    uint64_t until_ns, hold_ns; /* when to try one more, and for how long that is put off */
    uint64_t tried_ns;          /* the last time */
    uint64_t spin_ns;
    _Atomic bool closing;
    struct seat *seat;
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

static bool gate_is_open(struct gate *g, uint32_t seen) {
    return atomic_load_explicit(&g->generation, memory_order_acquire) != seen;
}

static void gate_sleep(struct gate *g, uint32_t seen) {
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->generation) == seen)
        syscall(SYS_futex, &g->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void seen_here(struct seat *s) {
    atomic_store_explicit(&s->core, sched_getcpu(), memory_order_relaxed);
}

static bool seen_on(const struct seat *s, int32_t core) {
    return atomic_load_explicit(&s->core, memory_order_relaxed) == core;
}

/* Whether a member that has not come to barrier `seen` was last on this member's core: then it is
 * waiting for that core. */
static bool in_the_way(const struct team *t, uint32_t member, uint32_t seen) {
    int32_t core = sched_getcpu();
    for (uint32_t i = 0; i < team_present(t); i++)
        if (i != member &&
            atomic_load_explicit(&t->seat[i].arrived, memory_order_relaxed) != seen + 1 &&
            seen_on(&t->seat[i], core))
            return true;
    return false;
}

/* Polls for the gate; false: sleep instead. */
static bool gate_poll(struct team *t, struct gate *g, uint32_t seen, uint32_t member) {
    uint64_t start = t->spin_ns ? clock_ns() : 0, last = start;
    while (t->spin_ns) {
        for (int i = 0; i < ROUNDS; i++) {
            if (gate_is_open(g, seen))
                return true;
            relax();
        }
        uint64_t now = clock_ns();
        if (now - start > t->spin_ns || now - last > TAKEN_NS)
            return false;
        if (g != &t->barrier && seen_on(&t->seat[0], sched_getcpu()))
            return false;
        if (g == &t->barrier && in_the_way(t, member, seen)) {
            /* Once may be a member that has just moved on and not been seen elsewhere yet. */
            if (t->seat[member].crossed++)
                atomic_store_explicit(&t->seat[member].crowded, true, memory_order_relaxed);
            return false;
        }
        last = now;
    }
    return false;
}

static void gate_wait(struct team *t, struct gate *g, uint32_t seen, uint32_t member) {
    if (gate_poll(t, g, seen, member))
        return;
    struct seat *s = &t->seat[member];
    atomic_fetch_add_explicit(&s->parked, 1, memory_order_relaxed);
    uint64_t start = clock_ns();
    gate_sleep(g, seen);
    s->slept_ns += clock_ns() - start;
    seen_here(s);
}

void team_barrier(struct team *t, uint32_t member) {
    if (team_present(t) == 1)
        return;
    struct seat *s = &t->seat[member];
    uint32_t seen = atomic_load(&t->barrier.generation);
    seen_here(s);
    atomic_store_explicit(&s->arrived, seen + 1, memory_order_relaxed);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == team_present(t)) {
        atomic_store(&t->arrived, 0);
        gate_open(&t->barrier);
    } else {
        gate_wait(t, &t->barrier, seen, member);
    }
}

/* What a thread has had of its core. */
struct share {
    uint64_t at_ns, own_ns;
    long preempted, faults;
};

static struct share share_now(void) {
    struct timespec t;
    struct rusage u;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    getrusage(RUSAGE_THREAD, &u);
    return (struct share){clock_ns(), (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec,
                          u.ru_nivcsw, u.ru_majflt};
}

/* Whether the core was somebody else's for an eighth of the time: time that the thread neither
 * computed nor slept in. One that waited for a page of a file is not counted. */
static bool was_taken(const struct share *from, const struct share *to, uint64_t slept_ns) {
    uint64_t took = to->at_ns - from->at_ns, used = to->own_ns - from->own_ns + slept_ns;
    return to->preempted > from->preempted && to->faults == from->faults &&
           took > used + TAKEN_NS && took - used > took / 8;
}

static void run_part(struct team *t, uint32_t member) {
    struct seat *s = &t->seat[member];
    s->slept_ns = s->crossed = 0;
    atomic_store_explicit(&s->crowded, false, memory_order_relaxed);
    struct share from = share_now();
    t->fn(t->arg, member);
    struct share to = share_now();
    if (was_taken(&from, &to, s->slept_ns))
        atomic_store_explicit(&s->crowded, true, memory_order_relaxed);
    team_barrier(t, member);
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
        gate_wait(t, &t->seat[m.index].start, seen, m.index);
        seen++;
        if (atomic_load(&t->closing))
            return NULL;
        run_part(t, m.index);
    }
}

struct team *team_open(uint32_t threads) {
    struct team *t = aligned_alloc(64, (sizeof *t + 63) & ~(size_t)63);
    if (!t)
        return NULL;
    *t = (struct team){
        .threads = threads, .started = 1, .present = threads, .room = threads, .hold_ns = HOLD_NS};
    /* With fewer cores than members, polling only takes the core from the one we wait for. */
    t->spin_ns = cpu_count() >= threads ? SPIN_NS : 0;
    t->thread = calloc(threads, sizeof *t->thread);
    t->seat = aligned_alloc(64, threads * sizeof *t->seat);
    if (!t->thread || !t->seat) {
        team_close(t);
        return NULL;
    }
    for (uint32_t i = 0; i < threads; i++)
        t->seat[i] = (struct seat){.core = -1};
    for (; t->started < threads; t->started++) {
        struct member *m = malloc(sizeof *m);
        if (!m)
            break;
        *m = (struct member){t, t->started};
        if (pthread_create(&t->thread[t->started], NULL, member_main, m) != 0) {
            free(m);
            break;
        }
    }
    if (t->started < threads) {
        team_close(t);
        return NULL;
    }
    return t;
}

void team_close(struct team *t) {
    if (!t)
        return;
    atomic_store(&t->closing, true);
    for (uint32_t i = 1; i < t->started; i++)
        gate_open(&t->seat[i].start);
    for (uint32_t i = 1; i < t->started; i++)
        pthread_join(t->thread[i], NULL);
    free(t->thread);
    free(t->seat);
    free(t);
}

uint32_t team_threads(const struct team *t) {
    return t->threads;
}

uint64_t team_parked(const struct team *t) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->threads; i++)
        n += atomic_load_explicit(&t->seat[i].parked, memory_order_relaxed);
    return n;
}

static void run_on(struct team *t, uint32_t members, void (*fn)(void *, uint32_t), void *arg) {
    atomic_store_explicit(&t->present, members, memory_order_relaxed);
    if (members == 1) {
        fn(arg, 0);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    seen_here(&t->seat[0]);
    for (uint32_t i = 1; i < members; i++)
        gate_open(&t->seat[i].start);
    run_part(t, 0);
}

void team_run(struct team *t, void (*fn)(void *, uint32_t), void *arg) {
    run_on(t, t->threads, fn, arg);
}

void team_run_present(struct team *t, void (*fn)(void *, uint32_t), void *arg) {
    bool more = t->room < t->threads && clock_ns() >= t->until_ns;
    if (more)
        t->tried_ns = clock_ns();
    uint32_t members = t->room + more;
    run_on(t, members, fn, arg);
    bool crowded = false;
    for (uint32_t i = 0; i < members && members > 1; i++)
        crowded |= atomic_load_explicit(&t->seat[i].crowded, memory_order_relaxed);
    if (!crowded && !more)
        return;
    uint64_t now = clock_ns();
    t->room = crowded ? members - 1 : members;
    if (crowded && now - t->tried_ns > HOLD_MOST_NS) /* a new neighbour, not the one tried with */
        t->hold_ns = HOLD_NS;
    else if (crowded && t->hold_ns < HOLD_MOST_NS)
        t->hold_ns *= 2;
    t->until_ns = now + (crowded ? t->hold_ns : HOLD_NS);
}

uint32_t team_present(const struct team *t) {
    return atomic_load_explicit(&t->present, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------- claims */

/* How much of a range of n units, of which `given` are gone, is handed out at once. */
static uint32_t piece_of(uint32_t n, uint32_t given, bool own) {
    if (own && given == 0)
        return n - n / 4;
    return (n - given + 1) / 2;
}

/* A member that finds the counter of an earlier barrier takes it for zero: nobody has to reset
 * anything, and ranges that nobody claims cost nothing. The counter would have to rest for exactly
 * 2^32 barriers to be taken for a fresh one. */
static bool take_from(struct seat *s, uint32_t turn, uint32_t n, bool own, uint32_t *first,
                      uint32_t *count) {
    uint64_t was = atomic_load_explicit(&s->claimed, memory_order_relaxed);
    for (;;) {
        uint32_t given = (uint32_t)(was >> 32) == turn ? (uint32_t)was : 0;
        if (given >= n)
            return false;
        *first = given;
        *count = piece_of(n, given, own);
        uint64_t next = (uint64_t)turn << 32 | (given + *count);
        if (atomic_compare_exchange_weak_explicit(&s->claimed, &was, next, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
}

bool team_claim(struct team *t, uint32_t member, uint32_t units, uint32_t *visited, uint32_t *begin,
                uint32_t *end) {
    uint32_t threads = team_present(t);
    if (threads == 1) { /* its barriers are not counted */
        *begin = 0;
        *end = units;
        return (*visited)++ == 0 && units > 0;
    }
    /* This barrier cannot open before this member comes to it: one number for all calls. */
    uint32_t turn = atomic_load_explicit(&t->barrier.generation, memory_order_relaxed) + 1;
    for (; *visited < threads; ++*visited) {
        uint32_t whose = (member + *visited) % threads;
        uint32_t low = (uint32_t)((uint64_t)units * whose / threads);
        uint32_t high = (uint32_t)((uint64_t)units * (whose + 1) / threads);
        uint32_t first, count;
        if (take_from(&t->seat[whose], turn, high - low, *visited == 0, &first, &count)) {
            *begin = low + first;
            *end = *begin + count;
            return true;
        }
    }
    return false;
}
