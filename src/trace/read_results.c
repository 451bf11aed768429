/* read_results.c: finds out what a path holds and reads it. Called by the frontier, comparisons and
 * the report. */
#include "trace/results_inside.h"

#include "base/file.h"
#include "model/json_fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { LIMIT = 256 << 20 };

const char *statistic_name(enum statistic s) {
    static const char *const names[STATISTICS] = {"mean", "median", "p75", "p90",
                                                  "p95",  "p99",    "std"};
    return names[s];
}

void results_free(struct results *l) {
    free(l->row);
    *l = (struct results){0};
}

struct result_row *results_row(struct results *l, const char *source) {
    if (l->n == l->room) {
        size_t room = 2 * l->room + 16;
        struct result_row *more = realloc(l->row, room * sizeof *more);
        if (!more)
            return NULL;
        l->row = more;
        l->room = room;
    }
    struct result_row *r = &l->row[l->n++];
    *r = (struct result_row){.conc = NAN,
                             .gpus = NAN,
                             .isl = NAN,
                             .osl = NAN,
                             .total_rate = NAN,
                             .out_rate = NAN,
                             .in_rate = NAN};
    for (int i = 0; i < STATISTICS; i++)
        r->ttft[i] = r->tpot[i] = r->itl[i] = r->e2el[i] = r->intvty[i] = NAN;
    size_t length = strlen(source), room = sizeof r->source - 1;
    snprintf(r->source, sizeof r->source, "%s", source + (length > room ? length - room : 0));
    return r;
}

void result_complete(struct result_row *r) {
    for (int i = 0; i < STATISTIC_STD; i++) {
        if (isnan(r->intvty[i]) && r->tpot[i] > 0)
            r->intvty[i] = 1 / r->tpot[i];
        if (isnan(r->tpot[i]) && r->intvty[i] > 0)
            r->tpot[i] = 1 / r->intvty[i];
    }
}

static void spread(const struct distribution *d, double out[STATISTICS]) {
    const double x[STATISTICS] = {d->mean, d->p50, d->p75, d->p90, d->p95, d->p99, d->std};
    memcpy(out, x, sizeof x);
}

static void copy(char *out, size_t cap, const char *text) {
    snprintf(out, cap, "%s", text ? text : "");
}

void result_of_run(const struct run *r, const struct run_summary *s, const char *source,
                   struct result_row *out) {
    struct results one = {.row = out, .room = 1};
    const struct run_subject *who = &r->subject;
    results_row(&one, source);
    copy(out->label, sizeof out->label, who->label);
    copy(out->hardware, sizeof out->hardware, who->hardware);
    copy(out->framework, sizeof out->framework, who->framework);
    copy(out->model, sizeof out->model, who->model);
    copy(out->precision, sizeof out->precision, who->precision);
    copy(out->spec, sizeof out->spec, who->spec_decoding);
    time_t day = (time_t)((r->profiling_started ? r->profiling_started : r->started) / 1000000000);
    struct tm t;
    if (day > 0 && gmtime_r(&day, &t))
        strftime(out->date, sizeof out->date, "%Y-%m-%d", &t);
    if (r->isl && r->osl)
        snprintf(out->workload, sizeof out->workload, "%" PRIu64 "/%" PRIu64, r->isl, r->osl);
    else
        copy(out->workload, sizeof out->workload, r->dataset);
    copy(out->state, sizeof out->state, run_state(r, s));
    out->conc = r->concurrency ? r->concurrency : NAN;
    out->gpus = run_gpus(who);
    out->isl = r->isl ? (double)r->isl : NAN;
    out->osl = r->osl ? (double)r->osl : NAN;
    out->total_rate = s->per_gpu_total;
    out->out_rate = s->per_gpu_out;
    out->in_rate = s->per_gpu_in;
    spread(&s->ttft, out->ttft);
    spread(&s->itl, out->tpot);
    spread(&s->itl, out->itl);
    spread(&s->latency, out->e2el);
    spread(&s->intvty, out->intvty);
}

static weir_status no_memory(const char *path, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its results");
}

/* --------------------------------------------------------------------------------- directories */

static weir_status read_run(const char *dir, struct results *out, weir_error *err) {
    struct run run;
    weir_status status = run_read(dir, &run, err);
    if (status)
        return status;
    struct run_summary *s = malloc(sizeof *s);
    struct result_row *row = results_row(out, dir);
    status = s && row ? run_summarise(&run, s, err) : no_memory(dir, err);
    if (!status)
        result_of_run(&run, s, dir, row);
    free(s);
    run_free(&run);
    return status;
}

static weir_status read_dir(const char *dir, struct results *out, weir_error *err) {
    struct run_folder runs;
    if (run_is_dir(dir))
        return read_run(dir, out, err);
    weir_status s = run_folder_read(dir, &runs, err);
    if (s)
        return s;
    for (size_t i = 0; !s && i < runs.n; i++)
        s = read_run(runs.dir[i], out, err);
    run_folder_free(&runs);
    return s;
}

/* --------------------------------------------------------------------------------------- files */

static weir_status read_file(const char *path, uint32_t gpus, struct results *out,
                             weir_error *err) {
    char *text;
    size_t bytes, length = strlen(path);
    weir_status s = file_read(path, LIMIT, &text, &bytes, err);
    if (s)
        return s;
    /* A byte order mark, as spreadsheets put it in front. */
    size_t mark = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
    if (length > 4 && !strcasecmp(path + length - 4, ".csv")) {
        s = results_csv(text + mark, path, out, err);
    } else {
        json_t *value = NULL;
        s = json_text_parse(text + mark, bytes - mark, path, &value, err);
        if (!s)
            s = results_json(value, path, gpus, out, err);
        json_decref(value);
    }
    free(text);
    return s;
}

weir_status results_read(const char *path, uint32_t gpus, struct results *out, weir_error *err) {
    struct stat is;
    size_t before = out->n;
    weir_status s;
    if (stat(path, &is))
        s = run_input_absent(path, err);
    else
        s = S_ISDIR(is.st_mode) ? read_dir(path, out, err) : read_file(path, gpus, out, err);
    if (s)
        out->n = before;
    return s;
}
