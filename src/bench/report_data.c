/* report_data.c: reads runs and puts them in the order the page shows them in. Called by
 * report.c. */
#include "bench/report_data.h"

#include "bench/configuration.h"
#include "trace/frontier.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

bool point_is_comparable(const struct report_point *p) {
    return p->valid && !p->scaled && !point_was_stopped(p);
}

bool point_was_stopped(const struct report_point *p) {
    return p->cancelled || p->aborted;
}

static weir_status no_memory(weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, "report", "no memory");
}

static char *label_of(const struct run *r) {
    const struct run_subject *s = &r->subject;
    char *text = NULL;
    if (s->label && s->label[0])
        return strdup(s->label);
    const char *first = s->model ? s->model : s->framework ? s->framework : "unnamed";
    bool two = s->hardware && s->hardware[0];
    return asprintf(&text, "%s%s%s", first, two ? ", " : "", two ? s->hardware : "") < 0 ? NULL
                                                                                         : text;
}

static weir_status price_of(const struct run *r, const struct report_options *o,
                            struct report_point *p, weir_error *err) {
    p->dollars = o->price;
    p->kilowatts = NAN;
    if (o->table && !(o->price > 0)) {
        const struct price_row *row;
        weir_status status = price_of_run(o->table, r->subject.hardware, p->dir, &row, err);
        if (status)
            return status;
        p->dollars = row->dollars;
        p->kilowatts = row->kilowatts;
    }
    p->cost = cost_of(p->s.per_gpu_total, p->dollars, p->kilowatts);
    return WEIR_OK;
}

static weir_status take_run(struct report_point *p, const struct run *r,
                            const struct report_options *o, weir_error *err) {
    weir_status status = run_summarise(r, &p->s, err);
    if (!status)
        status = curves_of(r, p->curve, err);
    if (!status)
        status = price_of(r, o, p, err);
    if (status)
        return status;
    timeline_of(r, &p->timeline);
    sources_of(r, &p->s, &p->sources);
    p->drafts = counter_of(r, offsetof(struct server_sample, drafts));
    p->accepted = counter_of(r, offsetof(struct server_sample, accepted_tokens));
    p->acceptance_length = p->drafts > 0 ? 1 + p->accepted / p->drafts : NAN;
    p->lateness_p99_us = r->overhead.late_us.n ? r->overhead.late_us.p99 : NAN;
    p->client_busy = r->overhead.busy;
    p->concurrency = r->concurrency;
    p->started = r->started;
    p->valid = p->s.valid;
    p->cancelled = r->was_cancelled;
    p->aborted = r->abort_reason;
    p->scaled = !run_is_unscaled(r);
    p->label = label_of(r);
    p->configuration = configuration_of(r);
    p->row = run_row_json(r, &p->s);
    p->warnings = json_array();
    for (uint32_t i = 0; p->warnings && i < r->n_warnings; i++)
        json_array_append_new(p->warnings, json_string(r->warnings[i]));
    return p->label && p->configuration && p->row && p->warnings ? WEIR_OK : no_memory(err);
}

static weir_status add_run(struct report *out, const char *dir, const struct report_options *o,
                           weir_error *err) {
    struct report_point *more = realloc(out->point, (out->n + 1) * sizeof *more);
    struct run *r = calloc(1, sizeof *r);
    weir_status status = WEIR_OK;
    if (more)
        out->point = more;
    if (!more || !r)
        status = no_memory(err);
    if (!status)
        status = run_read(dir, r, err);
    if (!status) {
        struct report_point *p = &out->point[out->n++];
        memset(p, 0, sizeof *p);
        p->dir = strdup(dir);
        status = p->dir ? take_run(p, r, o, err) : no_memory(err);
        run_free(r);
    }
    free(r);
    return status;
}

/* The runs directly in `dir`, by name. */
static weir_status add_folder(struct report *out, const char *dir, const struct report_options *o,
                              weir_error *err) {
    struct run_folder runs;
    weir_status status = run_folder_read(dir, &runs, err);
    for (size_t i = 0; !status && i < runs.n; i++)
        status = add_run(out, runs.dir[i], o, err);
    run_folder_free(&runs);
    return status;
}

static weir_status find_series(struct report *r, weir_error *err) {
    r->series = calloc(r->n + 1, sizeof *r->series);
    if (!r->series)
        return no_memory(err);
    for (size_t i = 0; i < r->n; i++) {
        struct report_point *p = &r->point[i];
        size_t k = 0;
        while (k < r->n_series && strcmp(r->series[k], p->label))
            k++;
        if (k == r->n_series)
            r->series[r->n_series++] = p->label;
        p->series = k;
    }
    return WEIR_OK;
}

static int by_series(const void *a, const void *b) {
    const struct report_point *x = a, *y = b;
    if (x->series != y->series)
        return x->series < y->series ? -1 : 1;
    if (x->concurrency != y->concurrency)
        return x->concurrency < y->concurrency ? -1 : 1;
    return (x->started > y->started) - (x->started < y->started);
}

/* Repeats of a point are told apart by a number. */
static weir_status make_names(struct report *r, weir_error *err) {
    for (size_t i = 0; i < r->n; i++) {
        struct report_point *p = &r->point[i];
        size_t same = 0, nth = 0;
        for (size_t k = 0; k < r->n; k++)
            if (r->point[k].series == p->series && r->point[k].concurrency == p->concurrency) {
                same++;
                nth += k <= i;
            }
        char repeat[32] = "", lanes[32] = "";
        if (same > 1)
            snprintf(repeat, sizeof repeat, " #%zu", nth);
        if (p->concurrency)
            snprintf(lanes, sizeof lanes, " @ %u", p->concurrency);
        if (asprintf(&p->name, "%s%s%s", p->label, lanes, repeat) < 0) {
            p->name = NULL;
            return no_memory(err);
        }
    }
    return WEIR_OK;
}

/* Points that cannot be compared stand on a frontier only where their series has no others; those
 * that were stopped on none. */
static weir_status mark_frontiers(struct report *r, weir_error *err) {
    struct point *p = calloc(r->n + 1, sizeof *p);
    if (!p)
        return no_memory(err);
    for (size_t s = 0; s < r->n_series; s++) {
        size_t n = 0;
        for (int comparable = 1; comparable >= 0 && !n; comparable--)
            for (size_t i = 0; i < r->n; i++)
                if (r->point[i].series == s && point_is_comparable(&r->point[i]) == comparable &&
                    !point_was_stopped(&r->point[i]) && r->point[i].s.intvty.p90 > 0 &&
                    r->point[i].s.per_gpu_total > 0)
                    p[n++] =
                        (struct point){r->point[i].s.intvty.p90, r->point[i].s.per_gpu_total, i};
        n = frontier_of(p, n, FRONTIER_UPPER_RIGHT);
        for (size_t i = 0; i < n; i++)
            r->point[p[i].index].on_frontier = true;
    }
    free(p);
    return WEIR_OK;
}

weir_status report_read(const char *const *dirs, size_t n, const struct report_options *o,
                        struct report *out, weir_error *err) {
    *out = (struct report){.title = o->title ? o->title : "Benchmark report"};
    weir_status status = WEIR_OK;
    for (size_t i = 0; !status && i < n; i++)
        status = access(dirs[i], F_OK) ? run_input_absent(dirs[i], err)
                 : run_is_dir(dirs[i]) ? add_run(out, dirs[i], o, err)
                                       : add_folder(out, dirs[i], o, err);
    if (!status)
        status = find_series(out, err);
    if (!status) {
        qsort(out->point, out->n, sizeof *out->point, by_series);
        status = make_names(out, err);
    }
    if (!status)
        status = mark_frontiers(out, err);
    if (o->price > 0)
        snprintf(out->price_note, sizeof out->price_note, "$%g per GPU and hour, as given",
                 o->price);
    else if (o->table)
        snprintf(out->price_note, sizeof out->price_note, "price table %s (%s)", o->table->name,
                 o->table->source);
    if (status)
        report_free(out);
    return status;
}

void report_free(struct report *r) {
    for (size_t i = 0; i < r->n; i++) {
        struct report_point *p = &r->point[i];
        free(p->dir);
        free(p->label);
        free(p->name);
        json_decref(p->configuration);
        json_decref(p->row);
        json_decref(p->warnings);
    }
    free(r->point);
    free(r->series);
    *r = (struct report){0};
}
