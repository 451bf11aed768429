/* executor_program.c: runs step programs on a thread of its own, which is member 0 of the team, so
 * that the next step can be scheduled while one runs. Called through executor.h by the engine
 * thread alone.
 *
 * The two threads share two counters that only grow: batches submitted and batches done. Whoever
 * waits compares with the value it saw, polls for a moment, then sleeps in the kernel.
 * Invariant that bites: a row that failed still has an id that the next batch may name; it is
 * replaced by token 0 before the embedding reads it, and the engine drops that row. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/plural.h"
#include "engine/executor.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A few tens of microseconds: longer than scheduling a step takes, shorter than anybody notices. */
enum { SPIN_ROUNDS = 500 };

struct counter {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct flight {
    const struct batch *batch;
    struct sample_result *tokens;
    struct step_result *results;
    uint32_t n;
    double seconds;
    bool failed;
    weir_error failure;
};

struct program_executor {
    struct executor base;
    struct counter submitted, done;
    struct step_program *program;
    struct team *team;
    const struct place *place;
    int32_t *ids; /* of the running batch, references resolved */
    struct flight flight[EXECUTOR_DEPTH];
    uint32_t collected;
    uint32_t spin_executor, spin_engine;
    _Atomic bool closing;
    pthread_t thread;
    bool started;
};

static void counter_advance(struct counter *c) {
    atomic_fetch_add(&c->value, 1);
    if (atomic_load(&c->sleepers))
        syscall(SYS_futex, &c->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void counter_wait(struct counter *c, uint32_t seen, uint32_t spin) {
    for (uint32_t i = 0; i < spin; i++) {
        if (atomic_load_explicit(&c->value, memory_order_acquire) != seen)
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    atomic_fetch_add(&c->sleepers, 1);
    while (atomic_load(&c->value) == seen)
        syscall(SYS_futex, &c->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&c->sleepers, 1);
}

static void resolve_ids(struct program_executor *x, const struct batch *b,
                        const struct flight *previous) {
    for (uint32_t i = 0; i < b->n_rows; i++) {
        int64_t id = b->ids[i];
        if (id < 0) {
            uint32_t row = (uint32_t)(id - ID_FROM_PREVIOUS);
            WEIR_ASSERT(row < previous->n);
            const struct sample_result *r = &previous->tokens[row];
            id = r->status == WEIR_OK ? r->token.id : 0;
        }
        x->ids[i] = (int32_t)id;
    }
}

/* Copies no more of a result than was filled: 20 alternatives are most of its size. */
static void keep_result(struct sample_result *to, const struct sample_result *from) {
    to->status = from->status;
    to->not_finite = from->not_finite;
    to->token.id = from->token.id;
    to->token.logprob = from->token.logprob;
    to->token.rank = from->token.rank;
    to->token.n_top = from->token.n_top;
    for (uint32_t i = 0; i < from->token.n_top; i++)
        to->token.top[i] = from->token.top[i];
}

static void run_step(struct program_executor *x, uint32_t ticket) {
    struct flight *f = &x->flight[ticket % EXECUTOR_DEPTH];
    uint64_t start = clock_ns();
    struct batch b = *f->batch;
    resolve_ids(x, &b, &x->flight[(ticket + EXECUTOR_DEPTH - 1) % EXECUTOR_DEPTH]);
    b.ids = x->ids;
    program_run(x->program, x->team, &b);
    const struct sample_result *drawn = program_results(x->program);
    for (uint32_t i = 0; i < b.n_logits; i++)
        keep_result(&f->tokens[i], &drawn[i]);
    f->n = b.n_logits;
    f->failed = program_failure(x->program, &f->failure) != WEIR_OK;
    f->seconds = (double)(clock_ns() - start) * 1e-9;
}

static void *executor_main(void *arg) {
    struct program_executor *x = arg;
    if (place_nodes(x->place) > 1) /* here, as this thread is member 0 */
        team_run(x->team, place_member, (void *)(uintptr_t)x->place);
    for (uint32_t ticket = 0;; ticket++) {
        counter_wait(&x->submitted, ticket, x->spin_executor);
        if (atomic_load(&x->closing))
            return NULL;
        run_step(x, ticket);
        counter_advance(&x->done);
    }
}

static void program_submit(struct executor *base, const struct batch *b) {
    struct program_executor *x = (struct program_executor *)base;
    uint32_t ticket = atomic_load_explicit(&x->submitted.value, memory_order_relaxed);
    WEIR_ASSERT(ticket - x->collected < EXECUTOR_DEPTH);
    x->flight[ticket % EXECUTOR_DEPTH].batch = b;
    counter_advance(&x->submitted);
}

static void program_collect(struct executor *base, struct step_outcome *out) {
    struct program_executor *x = (struct program_executor *)base;
    uint32_t ticket = x->collected++;
    WEIR_ASSERT(atomic_load_explicit(&x->submitted.value, memory_order_relaxed) != ticket);
    /* `done` may be ahead of the oldest by one. */
    if (atomic_load(&x->done.value) == ticket)
        counter_wait(&x->done, ticket, x->spin_engine);
    struct flight *f = &x->flight[ticket % EXECUTOR_DEPTH];
    *out = (struct step_outcome){f->n, f->results, f->seconds, f->failed ? &f->failure : NULL};
}

static void program_close(struct executor *base) {
    struct program_executor *x = (struct program_executor *)base;
    if (x->started) {
        atomic_store(&x->closing, true);
        counter_advance(&x->submitted);
        pthread_join(x->thread, NULL);
    }
    team_close(x->team);
    program_free(x->program);
    for (int i = 0; i < EXECUTOR_DEPTH; i++) {
        free(x->flight[i].tokens);
        free(x->flight[i].results);
    }
    free(x->ids);
    free(x);
}

weir_status executor_open_program(struct step_program *program, uint32_t threads,
                                  const struct place *place, struct step_limits limits,
                                  struct executor **out, weir_error *err) {
    *out = NULL;
    size_t bytes = (sizeof(struct program_executor) + 63) & ~(size_t)63;
    struct program_executor *x = aligned_alloc(64, bytes);
    if (!x) {
        program_free(program);
        return weir_fail(err, WEIR_NO_MEMORY, "executor", "no memory");
    }
    *x = (struct program_executor){
        .base = {program_submit, program_collect, program_close},
        .program = program,
        .place = place,
    };
    /* The executor's core is idle while the engine thread schedules, unless both share the only
     * one. The engine thread has a core to poll on only where the team leaves one. */
    uint32_t cores = cpu_count();
    x->spin_executor = cores > 1 ? SPIN_ROUNDS : 0;
    x->spin_engine = cores > threads ? SPIN_ROUNDS : 0;
    x->ids = calloc(limits.rows, sizeof *x->ids);
    bool ok = x->ids;
    for (int i = 0; ok && i < EXECUTOR_DEPTH; i++) {
        struct flight *f = &x->flight[i];
        f->tokens = calloc(limits.logits, sizeof *f->tokens);
        f->results = calloc(limits.logits, sizeof *f->results);
        ok = f->tokens && f->results;
        for (uint32_t k = 0; ok && k < limits.logits; k++)
            f->results[k] = (struct step_result){1, &f->tokens[k]};
    }
    x->team = ok ? team_open(threads) : NULL;
    if (x->team)
        x->started = pthread_create(&x->thread, NULL, executor_main, x) == 0;
    if (!x->started) {
        program_close(&x->base);
        return weir_fail(err, WEIR_NO_MEMORY, "threads",
                         "cannot start %" PRIu32 " %s with their buffers", threads,
                         plural(threads, "thread", "threads"));
    }
    *out = &x->base;
    return WEIR_OK;
}
