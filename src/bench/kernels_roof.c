/* kernels_roof.c: see kernels_roof.h. Called by kernels.c between its samples.
 * Invariant that bites: the roof is a rate of the same threads, on the same kind of pages, in the
 * same moment; a virtual machine's bandwidth moves by half within minutes. */
#include "bench/kernels_roof.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "bench/kernels_loops.h"

#include <stdlib.h>

enum { PAGE = 4096, CACHE_BYTES = 256 << 10 };

struct roof_meter {
    struct team *team;
    struct arena arena;
    float *read, *modify;
    size_t each; /* bytes of a member's part of a buffer */
    int form[4]; /* of read, modify, copy, and of the f32 peak */
    uint64_t rounds;
    /* of the measurement in progress */
    int now;
    enum arithmetic arithmetic;
    double *work; /* [threads] what each member did */
    uint64_t start, end;
    volatile float kept;
};

enum { RUN_READ, RUN_MODIFY, RUN_COPY, RUN_CACHE, RUN_PEAK, RUN_EMPTY };

static void run_member(void *arg, uint32_t member) {
    struct roof_meter *m = arg;
    float *read = m->read + member * (m->each / sizeof(float));
    float *modify = m->modify + member * (m->each / sizeof(float));
    double *work = &m->work[member];
    *work = 0;
    team_barrier(m->team, member); /* a member may have slept; the clock starts when all are awake
                                    */
    if (member == 0)
        m->start = clock_ns();
    switch (m->now) {
    case RUN_READ:
        m->kept = loop_read(read, m->each, m->form[0]);
        *work = (double)m->each;
        break;
    case RUN_MODIFY:
        loop_modify(modify, m->each, m->form[1]);
        *work = 2 * (double)m->each;
        break;
    case RUN_COPY: /* half a buffer into the other half */
        loop_copy(read + m->each / 8, read, m->each / 2, m->form[2]);
        *work = (double)m->each;
        break;
    case RUN_CACHE: {
        size_t bytes = m->each < CACHE_BYTES ? m->each : CACHE_BYTES;
        for (int i = 0; i < 64; i++, *work += (double)bytes)
            m->kept = loop_read(read, bytes, 0);
        break;
    }
    case RUN_PEAK:
        *work =
            loop_peak(m->arithmetic, m->rounds, m->arithmetic == ARITHMETIC_F32 ? m->form[3] : 0);
        break;
    case RUN_EMPTY:
        for (int i = 0; i < 1000; i++)
            team_barrier(m->team, member);
        break;
    }
    team_barrier(m->team, member);
    if (member == 0)
        m->end = clock_ns();
}

/* Billions of bytes or operations a second. */
static double rate(struct roof_meter *m, int what, enum arithmetic a) {
    m->now = what;
    m->arithmetic = a;
    team_run(m->team, run_member, m);
    double ns = (double)(m->end - m->start), work = 0;
    for (uint32_t i = 0; i < team_threads(m->team); i++)
        work += m->work[i];
    return ns > 0 ? work / ns : 0;
}

/* The fastest of the forms of one loop, each tried three times in turn. */
static void choose_form(struct roof_meter *m, int what, int *form, int forms) {
    double best = 0;
    int chosen = 0;
    for (int round = 0; round < 3; round++)
        for (*form = 0; *form < forms; (*form)++) {
            double r = rate(m, what, ARITHMETIC_F32);
            if (r > best) {
                best = r;
                chosen = *form;
            }
        }
    *form = chosen;
}

weir_status roof_open(struct team *team, size_t bytes, struct roof_meter **out, weir_error *err) {
    *out = NULL;
    struct roof_meter *m = calloc(1, sizeof *m);
    uint32_t threads = team_threads(team);
    if (m) {
        m->team = team;
        m->each = (bytes / threads + 2 * PAGE - 1) / (2 * PAGE) * (2 * PAGE);
        m->work = calloc(threads, sizeof *m->work);
    }
    /* Two pages behind the end: prefetches beyond a buffer stay within the arena. */
    if (!m || !m->work || arena_open(&m->arena, 2 * m->each * threads + 4 * PAGE) != 0) {
        roof_close(m);
        return weir_fail(err, WEIR_NO_MEMORY, "roof", "no memory for two buffers of %zu bytes",
                         bytes);
    }
    m->read = arena_take(&m->arena, m->each * threads);
    m->modify = arena_take(&m->arena, m->each * threads);
    for (size_t i = 0; i < m->each * threads / sizeof(float); i++)
        m->read[i] = m->modify[i] = 0.5f;
    choose_form(m, RUN_READ, &m->form[0], LOOP_FORMS);
    choose_form(m, RUN_MODIFY, &m->form[1], LOOP_FORMS);
    choose_form(m, RUN_COPY, &m->form[2], LOOP_FORMS);
    m->rounds = 1000;
    choose_form(m, RUN_PEAK, &m->form[3], 3);
    /* As many rounds as take about 1.3 ms. */
    rate(m, RUN_PEAK, ARITHMETIC_F32);
    uint64_t ns = m->end - m->start;
    m->rounds = ns ? 1300000000u / ns + 1 : 100000;
    *out = m;
    return WEIR_OK;
}

void roof_close(struct roof_meter *m) {
    if (!m)
        return;
    arena_close(&m->arena);
    free(m->work);
    free(m);
}

void roof_take(struct roof_meter *m, unsigned what, struct roof *out) {
    if (what & ROOF_READ)
        out->read = rate(m, RUN_READ, ARITHMETIC_F32);
    if (what & ROOF_MODIFY)
        out->modify = rate(m, RUN_MODIFY, ARITHMETIC_F32);
    if (what & ROOF_COPY)
        out->copy = rate(m, RUN_COPY, ARITHMETIC_F32);
    if (what & ROOF_CACHE)
        out->cache = rate(m, RUN_CACHE, ARITHMETIC_F32);
    for (enum arithmetic a = ARITHMETIC_F32; a < ARITHMETICS; a++)
        if (what & (unsigned)ROOF_PEAK << a)
            for (int i = 0; i < 3; i++) { /* short, so that one may pass undisturbed */
                double r = rate(m, RUN_PEAK, a);
                out->peak[a] = i == 0 || r > out->peak[a] ? r : out->peak[a];
            }
}

double roof_barrier_us(struct roof_meter *m) {
    double best = 0;
    for (int i = 0; i < 5; i++) {
        rate(m, RUN_EMPTY, ARITHMETIC_F32);
        double us = (double)(m->end - m->start) / 1e6; /* a thousand of them, in ns */
        best = i == 0 || us < best ? us : best;
    }
    return best;
}

size_t roof_bytes(const struct roof_meter *m) {
    return m->each * team_threads(m->team);
}

bool roof_has(enum arithmetic a) {
    return a == ARITHMETIC_F32 || loop_peak(a, 1, 0) > 0;
}

unsigned roof_needs(const struct kernel_cost *k, enum arithmetic a) {
    unsigned needs = (unsigned)ROOF_PEAK << (roof_has(a) ? a : ARITHMETIC_F32);
    if (k->read_bytes > 0)
        needs |= ROOF_READ;
    if (k->modify_bytes > 0)
        needs |= ROOF_MODIFY;
    if (k->write_bytes > 0)
        needs |= ROOF_COPY;
    if (needs < ROOF_PEAK || (needs & (ROOF_READ | ROOF_MODIFY | ROOF_COPY)) == 0)
        needs |= ROOF_CACHE;
    return needs;
}

double roof_seconds(const struct roof *r, const struct kernel_cost *k, enum arithmetic a,
                    const char **limit) {
    double part[3] = {r->read > 0 ? k->read_bytes / (r->read * 1e9) : 0,
                      r->modify > 0 ? 2 * k->modify_bytes / (r->modify * 1e9) : 0,
                      r->copy > 0 ? k->write_bytes / (r->copy * 1e9) : 0};
    static const char *const name[3] = {"read", "modify", "copy"};
    double memory = part[0] + part[1] + part[2];
    int most = 0;
    for (int i = 1; i < 3; i++)
        most = part[i] > part[most] ? i : most;
    *limit = name[most];
    if (memory == 0 && r->cache > 0) {
        memory = k->cache_bytes / (r->cache * 1e9);
        *limit = "cache";
    }
    double peak = roof_has(a) ? r->peak[a] : r->peak[ARITHMETIC_F32];
    double arithmetic = peak > 0 ? k->flops / (peak * 1e9) : 0;
    if (arithmetic > memory)
        *limit = arithmetic_name(a);
    return arithmetic > memory ? arithmetic : memory;
}
