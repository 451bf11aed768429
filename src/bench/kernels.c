/* kernels.c: see kernels.h. Called by the command and by tests.
 * Samples of roof, variant and baseline alternate, so that a spell of a slower machine meets all of
 * them; a share of the roof is formed sample by sample from the roofs on both sides of it.
 * Invariant that bites: the check comes before the timing, because some operations change their
 * inputs and a thousand calls later they are nobody's test data. */
#include "bench/kernels.h"
#include "bench/quantile.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/plural.h"
#include "bench/kernels_call.h"
#include "bench/kernels_machine.h"
#include "bench/onednn.h"
#include "ops/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long and how much. */
struct effort {
    double sample_seconds, case_seconds;
    uint32_t least_samples, most_samples;
    double check_budget; /* multiply-adds of one slice */
    double least_bytes;  /* of a working set */
    double patience;     /* the longest single call worth making, seconds */
};

static struct effort effort_of(const struct kernel_options *o) {
    double bytes = 8.0 * (double)machine_last_cache_bytes();
    double most = (double)memory_limit() / 16;
    bytes = bytes < 300e6 ? 300e6 : bytes; /* 51 expert matrices */
    bytes = bytes > most ? most : bytes;
    if (o->small)
        return (struct effort){1e-4, 1e-3, 2, 2, 2e5, 1e5, 10};
    if (o->quick)
        return (struct effort){8e-3, 0.25, 3, 15, 1e7, bytes, 5};
    return (struct effort){20e-3, 1.2, 5, KERNEL_SAMPLES, 4e7, bytes, 20};
}

/* --------------------------------------------------------------------------------- statistics */

static double spread(const double *x, size_t n) {
    double middle = quantile(x, n, 0.5);
    return middle > 0 ? (quantile(x, n, 0.75) - quantile(x, n, 0.25)) / middle : 0;
}

static double mean_rate(double a, double b) {
    return a > 0 && b > 0 ? (a + b) / 2 : a > 0 ? a : b;
}
static void raise_to(double *most, double x) {
    *most = x > *most ? x : *most;
}
static void roof_raise(struct roof *most, const struct roof *r) {
    raise_to(&most->read, r->read);
    raise_to(&most->modify, r->modify);
    raise_to(&most->copy, r->copy);
    raise_to(&most->cache, r->cache);
    for (int i = 0; i < ARITHMETICS; i++)
        raise_to(&most->peak[i], r->peak[i]);
}
static struct roof roof_mean(const struct roof *a, const struct roof *b) {
    struct roof r = {mean_rate(a->read, b->read),
                     mean_rate(a->modify, b->modify),
                     mean_rate(a->copy, b->copy),
                     mean_rate(a->cache, b->cache),
                     {0}};
    for (int i = 0; i < ARITHMETICS; i++)
        r.peak[i] = mean_rate(a->peak[i], b->peak[i]);
    return r;
}

/* ------------------------------------------------------------------------------------ columns */

enum { COLUMNS = 1 + CPU_COLUMNS };

static const struct column *column_at(int i) {
    const struct column *fast[CPU_COLUMNS];
    if (i == 0)
        return &column_ref;
    return (uint32_t)i <= column_list(fast) ? fast[i - 1] : NULL;
}

const struct column *kernels_column(const char *name) {
    if (!strcmp(name, "fastest"))
        return column_fast(ACTIVATION_DEFAULT);
    for (int i = 0; i < COLUMNS; i++)
        if (column_at(i) && !strcmp(column_at(i)->name, name))
            return column_at(i);
    return NULL;
}

const char *kernels_columns(char *buf, size_t cap) {
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < COLUMNS && at < cap; i++)
        if (column_at(i))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at ? ", " : "", column_at(i)->name);
    return buf;
}

/* ------------------------------------------------------------------------------------ one case */

struct bench {
    const struct kernel_options *o;
    struct effort effort;
    struct team *team;
    struct roof_meter *meter;
    struct kernel_row *row;
    struct kernel_work *w;
    void *scratch;
    struct onednn *library; /* the baseline of this case, where it is no column of ours */
};

static bool is_library(const char *baseline) {
    return !strcmp(baseline, "onednn");
}

/* The exact column makes about one multiply-add a nanosecond. */
static double guess_seconds(const struct bench *b, const struct column *c) {
    double flops = b->w->cost.flops;
    if (c->chunked)
        return 0;
    if (b->w->c.family == KERNEL_MLA_PREFILL) /* absorbed: 1088 instead of 320 a pair */
        flops *= 4;
    return flops / 1e9 / team_threads(b->team);
}

static double once(struct bench *b, const struct column *c) {
    return kernel_call(b->w, c, b->team, b->scratch, 0, 1);
}

/* The fastest other column, by one call each. */
static const struct column *fastest_other(struct bench *b) {
    const struct column *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < COLUMNS; i++) {
        const struct column *c = column_at(i);
        if (!c || c == b->o->column || guess_seconds(b, c) > b->effort.patience)
            continue;
        double s = once(b, c);
        if (s < least) {
            least = s;
            best = c;
        }
    }
    return best;
}

static bool take_scratch(struct bench *b) {
    size_t most = 64;
    for (int i = 0; i < COLUMNS; i++) {
        const struct column *c = column_at(i);
        size_t n = c ? kernel_scratch_bytes(b->w, c, team_threads(b->team)) : 0;
        most = n > most ? n : most;
    }
    b->scratch = aligned_alloc(4096, (most + 4095) & ~(size_t)4095);
    return b->scratch != NULL;
}

static void finish_timing(struct kernel_timing *t, const struct kernel_cost *k) {
    t->us = quantile(t->sample_us, t->n, 0.5);
    t->best_us = quantile(t->sample_us, t->n, 0);
    t->spread = spread(t->sample_us, t->n);
    double traffic = k->read_bytes + 2 * k->modify_bytes + k->write_bytes;
    if (traffic <= 0)
        traffic = k->cache_bytes;
    t->gbps = t->us > 0 ? traffic / t->us / 1e3 : 0;
    t->gflops = t->us > 0 ? k->flops / t->us / 1e3 : 0;
}

static void time_case(struct bench *b, const struct column *base) {
    struct kernel_row *r = b->row;
    const struct kernel_cost *k = &b->w->cost;
    enum arithmetic a = r->arithmetic = kernel_arithmetic(&r->c, b->o->column);
    unsigned needs = roof_needs(k, a);
    double first = once(b, b->o->column), again = once(b, b->o->column);
    double one = first < again ? first : again;
    double calls = one > 0 ? ceil(b->effort.sample_seconds / one) : 1000;
    r->calls = calls > 100000 ? 100000 : (uint32_t)calls;
    r->main.variant = b->o->column->name;
    r->base.variant = base ? base->name : b->library ? onednn_name(b->library) : NULL;
    uint32_t at = 0;
    double start = clock_seconds();
    struct roof before = {0}, after = {0};
    roof_take(b->meter, needs, &before);
    struct roof most = before;
    for (uint32_t i = 0; i < b->effort.most_samples; i++) {
        if (i >= b->effort.least_samples && clock_seconds() - start > b->effort.case_seconds)
            break;
        double s = kernel_call(b->w, b->o->column, b->team, b->scratch, at, r->calls);
        r->main.sample_us[r->main.n++] = s / r->calls * 1e6;
        if (base || b->library) {
            double t = base ? kernel_call(b->w, base, b->team, b->scratch, at, r->calls)
                            : onednn_call(b->library, at, r->calls);
            r->base.sample_us[r->base.n++] = t / r->calls * 1e6;
        }
        at = (at + r->calls) % b->w->n_ops;
        roof_take(b->meter, needs, &after);
        r->sample_roof[i] = roof_mean(&before, &after);
        r->sample_share[i] =
            roof_seconds(&r->sample_roof[i], k, a, &r->limit) / (r->main.sample_us[i] * 1e-6);
        before = after;
        roof_raise(&most, &after);
    }
    finish_timing(&r->main, k);
    finish_timing(&r->base, k);
    r->share = quantile(r->sample_share, r->main.n, 0.5);
    const char *limit;
    r->best_share = roof_seconds(&most, k, a, &limit) / (r->main.best_us * 1e-6);
}

static weir_status measure(struct bench *b, weir_error *err) {
    struct kernel_row *r = b->row;
    const struct column *c = b->o->column;
    r->cost = b->w->cost;
    r->bytes = b->w->bytes;
    r->copies = b->w->n_ops;
    double guess = guess_seconds(b, c);
    if (guess > b->effort.patience) {
        snprintf(r->skipped, sizeof r->skipped, "%s would take about %.0f s a call", c->name,
                 guess);
        return WEIR_OK;
    }
    if (!take_scratch(b))
        return weir_fail(err, WEIR_NO_MEMORY, r->c.name, "no memory for scratch");
    if (b->o->wait_seconds > 0)
        idle_wait(b->o->wait_seconds);
    struct idle_mark from = idle_mark();
    r->bound = kernel_limit(&r->c, c->activation);
    weir_status s = kernel_check(b->w, c, b->team, b->effort.check_budget, &r->error, err);
    if (s)
        return s;
    r->exceeded = !kernel_error_within(&r->error, &r->bound);
    const struct column *base = NULL;
    if (b->o->baseline && is_library(b->o->baseline))
        b->library = onednn_takes(&r->c) ? onednn_open(b->w) : NULL;
    else if (b->o->baseline)
        base =
            !strcmp(b->o->baseline, "fastest") ? fastest_other(b) : kernels_column(b->o->baseline);
    if (b->library)
        onednn_call(b->library, 0, 1); /* its threads start with the first call */
    if (base && (base == c || guess_seconds(b, base) > b->effort.patience))
        base = NULL;
    time_case(b, base);
    onednn_close(b->library);
    b->library = NULL;
    struct idle_mark to = idle_mark();
    r->idle = idle_between(&from, &to);
    double roofs[KERNEL_SAMPLES];
    for (uint32_t i = 0; i < r->main.n; i++)
        roofs[i] = r->sample_share[i] * r->main.sample_us[i]; /* the roof's time of each sample */
    r->busy = !idle_is_quiet(&r->idle) || r->main.spread > 0.15 || spread(roofs, r->main.n) > 0.15;
    return WEIR_OK;
}

static weir_status run_case(struct bench *b, const struct kernel_case *c, double most_bytes,
                            weir_error *err) {
    struct kernel_row *r = b->row;
    *r = (struct kernel_row){.c = *c, .limit = ""};
    kernel_shape(c, r->shape, sizeof r->shape);
    r->main.variant = b->o->column->name;
    struct kernel_work w;
    weir_error small = {0};
    weir_status s = kernel_build(c, b->effort.least_bytes, most_bytes, b->team, 1, &w, &small);
    if (s) {
        snprintf(r->skipped, sizeof r->skipped, "%.150s", small.message);
        return WEIR_OK;
    }
    b->w = &w;
    b->scratch = NULL;
    s = measure(b, err);
    free(b->scratch);
    kernel_free(&w);
    return s;
}

/* ------------------------------------------------------------------------------------- the run */

/* Bytes that new memory may take: what the system calls available, less a reserve. */
static double free_bytes(void) {
    double kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13))
            kib = strtod(line + 13, NULL);
    if (f)
        fclose(f);
    double limit = (double)memory_limit();
    return 0.85 * (kib > 0 && kib * 1024 < limit ? kib * 1024 : limit);
}

static double median_of_roofs(const struct kernel_report *r, size_t offset) {
    double *x = malloc((r->n * KERNEL_SAMPLES + 1) * sizeof *x), middle = 0;
    size_t n = 0;
    for (size_t i = 0; x && i < r->n; i++)
        for (uint32_t k = 0; k < r->row[i].main.n; k++) {
            double v;
            memcpy(&v, (const char *)&r->row[i].sample_roof[k] + offset, sizeof v);
            if (v > 0)
                x[n++] = v;
        }
    if (n) {
        qsort(x, n, sizeof *x, quantile_order);
        middle = x[n / 2];
    }
    free(x);
    return middle;
}

/* What no case needed is measured at the end, so that the report names every limit. */
static void sum_roofs(struct kernel_report *r, struct roof_meter *m) {
    struct roof all = {0};
    roof_take(m, ROOF_ALL, &all);
    double *to = (double *)&r->roof;
    const double *last = (const double *)&all;
    for (size_t i = 0; i < sizeof r->roof / sizeof *to; i++) {
        double middle = median_of_roofs(r, i * sizeof *to);
        to[i] = middle > 0 ? middle : last[i];
    }
}

static weir_status run_all(struct bench *b, struct kernel_report *out, weir_error *err) {
    size_t n, of = 0;
    const struct kernel_case *table = kernel_table(&n);
    bool *take = calloc(n, sizeof *take);
    out->row = calloc(n, sizeof *out->row);
    if (!take || !out->row) {
        free(take);
        return weir_fail(err, WEIR_NO_MEMORY, "bench kernels", "no memory");
    }
    for (size_t i = 0; i < n; i++)
        of += take[i] = kernel_selected(&table[i], b->o->filter) &&
                        !(b->o->quick && !b->o->small && table[i].slow);
    weir_status s = WEIR_OK;
    if (of == 0)
        s = weir_fail(err, WEIR_BAD_VALUE, "--filter", "'%.80s' meets no case%s", b->o->filter,
                      b->o->quick ? " that --quick leaves in" : "");
    for (size_t i = 0; i < n && !s; i++) {
        if (!take[i])
            continue;
        struct kernel_case c = b->o->small ? kernel_case_small(table[i]) : table[i];
        b->row = &out->row[out->n];
        s = run_case(b, &c, free_bytes(), err);
        if (s)
            break;
        out->n++;
        out->exceeded += b->row->exceeded;
        out->busy += b->row->busy;
        if (b->o->done)
            b->o->done(b->o->arg, b->row, out->n, of);
    }
    free(take);
    return s;
}

weir_status kernels_run(const struct kernel_options *o, struct kernel_report *out,
                        weir_error *err) {
    *out = (struct kernel_report){.threads = o->threads};
    if (o->baseline && is_library(o->baseline)) {
        weir_status missing = onednn_load(o->threads, err);
        if (missing)
            return missing;
    } else if (o->baseline && strcmp(o->baseline, "fastest") && !kernels_column(o->baseline)) {
        char names[256];
        return weir_fail(err, WEIR_BAD_VALUE, "--baseline",
                         "'%.40s' is not on this machine: fastest, onednn, %s", o->baseline,
                         kernels_columns(names, sizeof names));
    }
    struct bench b = {.o = o, .effort = effort_of(o), .team = team_open(o->threads)};
    if (!b.team)
        return weir_fail(err, WEIR_NO_MEMORY, "--threads", "cannot start %u %s", o->threads,
                         plural(o->threads, "thread", "threads"));
    out->before = idle_probe(o->small ? 0.01 : 0.3);
    weir_status s = roof_open(b.team, (size_t)b.effort.least_bytes, &b.meter, err);
    if (!s) {
        out->roof_bytes = roof_bytes(b.meter);
        out->barrier_us = roof_barrier_us(b.meter);
        s = run_all(&b, out, err);
    }
    if (!s)
        sum_roofs(out, b.meter);
    roof_close(b.meter);
    team_close(b.team);
    out->after = idle_probe(o->small ? 0.01 : 0.3);
    out->quiet = out->busy == 0 && idle_is_quiet(&out->before) && idle_is_quiet(&out->after);
    if (s)
        kernels_free(out);
    return s;
}

void kernels_free(struct kernel_report *r) {
    free(r->row);
    *r = (struct kernel_report){0};
}
