/* threads.c: see threads.h. Called by the command and by tests.
 * A step is fork-join at its barest: the members present compute for a while, then meet at a
 * barrier. Invariant that bites: work is a number of dependent multiplications, never a time; a
 * member that waits for the clock would count what its neighbour took as done. */
#include "bench/threads.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/team.h"
#include "base/plural.h"
#include "bench/kernels_machine.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNITS_EACH = 16 }; /* units of a step for each member, as an operation has many rows */
enum { MEETS = 16, BARRIERS = 64 };

/* ------------------------------------------------------------------------------------- work */

static float multiply(uint64_t times) {
    float x = 1.0f;
    for (uint64_t i = 0; i < times; i++) {
        x = x * 1.0000001f;
        __asm__ volatile("" : "+x"(x));
    }
    return x;
}

/* Multiplications in a microsecond: `best` so far, or better. Nothing makes a try faster than the
 * processor is; a neighbour, or a clock that has not risen yet, makes it slower. */
static double multiplications_per_us(double best, int tries) {
    for (int i = 0; i < tries; i++) {
        uint64_t start = clock_ns();
        multiply(100000);
        double ns = (double)(clock_ns() - start);
        double rate = 1e8 / ns;
        best = rate > best ? rate : best;
    }
    return best;
}

/* ------------------------------------------------------------------------------------- neighbour
 */

struct neighbour {
    pthread_t thread;
    uint32_t core;
    _Atomic bool stop;
    volatile float kept;
};

static void *neighbour_main(void *arg) {
    struct neighbour *n = arg;
    while (!atomic_load_explicit(&n->stop, memory_order_relaxed))
        n->kept = multiply(1000);
    return NULL;
}

static uint32_t first_core(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (uint32_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                return i;
    return 0;
}

static bool neighbour_start(struct neighbour *n) {
    pthread_attr_t attr;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(n->core, &set);
    if (pthread_attr_init(&attr) != 0)
        return false;
    atomic_store(&n->stop, false);
    bool ok = pthread_attr_setaffinity_np(&attr, sizeof set, &set) == 0 &&
              pthread_create(&n->thread, &attr, neighbour_main, n) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

static void neighbour_stop(struct neighbour *n) {
    atomic_store(&n->stop, true);
    pthread_join(n->thread, NULL);
}

/* ------------------------------------------------------------------------------------- steps */

struct run {
    struct team *team;
    enum threads_way way;
    uint64_t unit;  /* multiplications; 0: barriers alone */
    uint32_t meets; /* between entering and leaving the team, as a step of a model has many */
    double seconds;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) uint64_t parked, members; /* members: summed over steps */
    uint64_t steps;
    float *kept;
};

static void polling_barrier(struct run *r) {
    uint32_t seen = atomic_load(&r->generation);
    if (atomic_fetch_add(&r->arrived, 1) + 1 == team_threads(r->team)) {
        atomic_store(&r->arrived, 0);
        atomic_fetch_add(&r->generation, 1);
        return;
    }
    while (atomic_load_explicit(&r->generation, memory_order_acquire) == seen) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

static void meet(struct run *r, uint32_t member) {
    if (r->way == THREADS_POLLING)
        polling_barrier(r);
    else
        team_barrier(r->team, member);
}

static float work(const struct run *r, uint32_t member) {
    uint32_t units = UNITS_EACH * team_threads(r->team), visited = 0;
    float x = 0;
    if (r->way == THREADS_CLAIMED) {
        uint32_t from, to;
        while (team_claim(r->team, member, units, &visited, &from, &to))
            x += multiply(r->unit * (to - from));
        return x;
    }
    uint32_t n = team_present(r->team);
    return multiply(r->unit * (units * (member + 1) / n - units * member / n));
}

static void run_member(void *arg, uint32_t member) {
    struct run *r = arg;
    for (uint32_t i = 0; i < r->meets; i++) {
        if (r->unit)
            r->kept[16 * (size_t)member] = work(r, member);
        meet(r, member);
    }
}

/* Steps a second, of one meeting each. */
static double run_for(struct run *r, enum threads_way way, uint64_t unit) {
    r->way = way;
    r->unit = unit;
    r->meets = unit ? MEETS : BARRIERS;
    r->steps = r->members = 0;
    uint64_t parked = team_parked(r->team), start = clock_ns(), now = start;
    for (; (double)(now - start) * 1e-9 < r->seconds; now = clock_ns()) {
        if (way == THREADS_POLLING || !unit)
            team_run(r->team, run_member, r);
        else
            team_run_present(r->team, run_member, r);
        r->steps += r->meets;
        r->members += (uint64_t)r->meets * team_present(r->team);
    }
    r->parked = team_parked(r->team) - parked;
    return (double)r->steps / ((double)(now - start) * 1e-9);
}

/* ------------------------------------------------------------------------------------- waking */

struct wake {
    uint64_t start;
    uint64_t *begun; /* [threads], a cache line apart */
};

static void note_time(void *arg, uint32_t member) {
    struct wake *w = arg;
    w->begun[8 * (size_t)member] = clock_ns();
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *x, uint32_t n) {
    double sorted[64];
    n = n > 64 ? 64 : n;
    if (n == 0)
        return 0;
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double wake_us(struct team *team, uint64_t *begun) {
    enum { TRIES = 31 };
    double us[TRIES];
    uint32_t threads = team_threads(team);
    for (int i = 0; i < TRIES; i++) {
        struct wake w = {.begun = begun};
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL); /* all have gone to sleep by then
                                                                  */
        w.start = clock_ns();
        team_run(team, note_time, &w);
        uint64_t latest = 0;
        for (uint32_t k = 1; k < threads; k++)
            latest = begun[8 * (size_t)k] > latest ? begun[8 * (size_t)k] : latest;
        us[i] = latest > w.start ? (double)(latest - w.start) * 1e-3 : 0;
    }
    return median(us, TRIES);
}

/* ------------------------------------------------------------------------------------- all of it
 */

const char *threads_way_name(enum threads_way way) {
    switch (way) {
    case THREADS_CLAIMED: return "claimed";
    case THREADS_FIXED: return "fixed";
    case THREADS_POLLING: return "polling";
    case THREADS_WAYS: break;
    }
    return "?";
}

static uint64_t unit_of(const struct threads_report *r, int item, double per_us) {
    double n = r->item_us[item] * per_us / UNITS_EACH;
    return n < 1 ? 1 : (uint64_t)n;
}

/* One sample of every figure. `best` is the rate of a member's multiplications, looked at again
 * between them: a machine that was slow when the work was chosen must not look too fast later. */
static void take(struct run *run, struct threads_report *r, uint32_t round, double per_us,
                 double *best, bool busy, double parks[THREADS_ITEMS][THREADS_WAYS][THREADS_ROUNDS],
                 double members[THREADS_ITEMS][THREADS_WAYS][THREADS_ROUNDS]) {
    for (int k = 0; k < 2; k++) {
        double rate = run_for(run, k ? THREADS_POLLING : THREADS_FIXED, 0);
        (busy ? r->barrier_us[k].busy : r->barrier_us[k].quiet)[round] = 1e6 / rate;
    }
    for (int i = 0; i < THREADS_ITEMS; i++)
        for (int way = 0; way < THREADS_WAYS; way++) {
            double rate = run_for(run, (enum threads_way)way, unit_of(r, i, per_us));
            *best = multiplications_per_us(*best, 3);
            (busy ? r->steps[i][way].busy : r->steps[i][way].quiet)[round] = rate;
            if (busy)
                members[i][way][round] = (double)run->members / (double)run->steps;
            else
                parks[i][way][round] =
                    (double)run->parked / (double)run->steps / (double)r->threads;
        }
}

static void sum_pair(struct threads_pair *p, uint32_t rounds) {
    p->quiet_median = median(p->quiet, rounds);
    p->busy_median = median(p->busy, rounds);
}

weir_status threads_measure(const struct threads_options *o, struct threads_report *out,
                            weir_error *err) {
    uint32_t rounds = o->rounds > THREADS_ROUNDS ? THREADS_ROUNDS : o->rounds;
    *out = (struct threads_report){.threads = o->threads,
                                   .cores = cpu_count(),
                                   .neighbour = first_core(),
                                   .rounds = rounds,
                                   .item_us = {20, 100, 1000}};
    double parks[THREADS_ITEMS][THREADS_WAYS][THREADS_ROUNDS];
    double members[THREADS_ITEMS][THREADS_WAYS][THREADS_ROUNDS];
    struct team *team = team_open(o->threads);
    void *lines = aligned_alloc(64, 64 * (size_t)o->threads);
    struct neighbour neighbour = {.core = out->neighbour};
    weir_status s = WEIR_OK;
    if (!team || !lines)
        s = weir_fail(err, WEIR_NO_MEMORY, "--threads", "cannot start %u %s", o->threads,
                      plural(o->threads, "thread", "threads"));
    struct run run = {.team = team, .seconds = o->seconds, .kept = lines};
    out->before = idle_probe(o->seconds);
    if (!s)
        out->wake_us = wake_us(team, lines);
    double per_us = multiplications_per_us(0, 20), best = per_us;
    for (uint32_t i = 0; i < rounds && !s; i++) {
        if (o->wait_seconds > 0)
            idle_wait(o->wait_seconds);
        take(&run, out, i, per_us, &best, false, parks, members);
        if (!neighbour_start(&neighbour)) {
            s = weir_fail(err, WEIR_NO_MEMORY, "neighbour", "cannot start a thread on core %u",
                          neighbour.core);
            break;
        }
        take(&run, out, i, per_us, &best, true, parks, members);
        neighbour_stop(&neighbour);
    }
    out->after = idle_probe(o->seconds);
    for (int i = 0; i < THREADS_ITEMS; i++)
        out->item_us[i] *= per_us / best; /* what that work takes a member at its fastest */
    for (int k = 0; k < 2; k++)
        sum_pair(&out->barrier_us[k], rounds);
    for (int i = 0; i < THREADS_ITEMS && !s; i++)
        for (int way = 0; way < THREADS_WAYS; way++) {
            sum_pair(&out->steps[i][way], rounds);
            out->parks[i][way] = median(parks[i][way], rounds);
            out->members[i][way] = median(members[i][way], rounds);
        }
    team_close(team);
    free(lines);
    return s;
}

static json_t *pair_json(const struct threads_pair *p, uint32_t rounds) {
    json_t *quiet = json_array(), *busy = json_array();
    for (uint32_t i = 0; i < rounds; i++) {
        json_array_append_new(quiet, json_real(p->quiet[i]));
        json_array_append_new(busy, json_real(p->busy[i]));
    }
    return json_pack("{s:f,s:f,s:o,s:o}", "quiet", p->quiet_median, "busy", p->busy_median,
                     "samples_quiet", quiet, "samples_busy", busy);
}

json_t *threads_json(const struct threads_report *r) {
    json_t *items = json_array();
    for (int i = 0; i < THREADS_ITEMS; i++) {
        json_t *o = json_pack("{s:f}", "item_us", r->item_us[i]);
        for (int way = 0; way < THREADS_WAYS; way++) {
            json_t *pair = pair_json(&r->steps[i][way], r->rounds);
            const struct threads_pair *p = &r->steps[i][way];
            json_object_set_new(
                pair, "kept",
                json_real(p->quiet_median > 0 ? p->busy_median / p->quiet_median : 0));
            json_object_set_new(pair, "sleeps_per_step", json_real(r->parks[i][way]));
            json_object_set_new(pair, "members_busy", json_real(r->members[i][way]));
            json_object_set_new(o, threads_way_name((enum threads_way)way), pair);
        }
        json_array_append_new(items, o);
    }
    return json_pack("{s:o,s:i,s:i,s:f,s:{s:o,s:o},s:o,s:b}", "machine", machine_json(r->threads),
                     "threads", (int)r->threads, "neighbour_core", (int)r->neighbour, "wake_us",
                     r->wake_us, "barrier_us", "team", pair_json(&r->barrier_us[0], r->rounds),
                     "polling", pair_json(&r->barrier_us[1], r->rounds), "steps", items, "quiet",
                     (int)(idle_is_quiet(&r->before) && idle_is_quiet(&r->after)));
}
