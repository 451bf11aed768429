/* series.c: groups points, walks their frontiers and interpolates. Called by the frontier command.
 */
#include "trace/series.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} text_keys[] = {
    {"label", offsetof(struct result_row, label)},
    {"hardware", offsetof(struct result_row, hardware)},
    {"framework", offsetof(struct result_row, framework)},
    {"model", offsetof(struct result_row, model)},
    {"precision", offsetof(struct result_row, precision)},
    {"spec", offsetof(struct result_row, spec)},
    {"date", offsetof(struct result_row, date)},
    {"workload", offsetof(struct result_row, workload)},
};
enum { TEXT_KEYS = sizeof text_keys / sizeof *text_keys };

/* The value of one key of `by` (n bytes); false: no such key. */
static bool key_text(const struct result_row *r, const char *key, size_t n, char *out, size_t cap) {
    out[0] = 0;
    if (n == 4 && !strncmp(key, "gpus", n)) {
        if (isfinite(r->gpus))
            snprintf(out, cap, "%g GPUs", r->gpus);
        return true;
    }
    for (int i = 0; i < TEXT_KEYS; i++)
        if (strlen(text_keys[i].name) == n && !strncmp(text_keys[i].name, key, n)) {
            snprintf(out, cap, "%s", (const char *)r + text_keys[i].offset);
            return true;
        }
    return false;
}

static weir_status name_of(const struct result_row *r, const char *by, bool one_workload,
                           char out[256], weir_error *err) {
    size_t used = 0;
    out[0] = 0;
    for (const char *key = by; *key;) {
        size_t n = strcspn(key, ",");
        char value[256];
        if (!key_text(r, key, n, value, sizeof value))
            return weir_fail(err, WEIR_BAD_VALUE, "series",
                             "'%.*s' is none of label, hardware, framework, model, precision, "
                             "spec, date, gpus and workload",
                             (int)(n < 60 ? n : 60), key);
        if (one_workload && n == 8 && !strncmp(key, "workload", n))
            value[0] = 0;
        if (value[0] && used < 250)
            used += (size_t)snprintf(out + used, 256 - used, "%s%s", used ? " " : "", value);
        key += n + (key[n] == ',');
    }
    if (!out[0])
        snprintf(out, 256, "all");
    return WEIR_OK;
}

static double x_of(const struct result_row *r, const struct series_options *o) {
    switch (o->x) {
    case SERIES_INTERACTIVITY: return r->intvty[o->statistic];
    case SERIES_TTFT: return r->ttft[o->statistic];
    case SERIES_E2EL: return r->e2el[o->statistic];
    }
    return NAN;
}

static double y_of(const struct result_row *r, const struct series_options *o) {
    switch (o->y) {
    case SERIES_TOTAL: return r->total_rate;
    case SERIES_OUTPUT: return r->out_rate;
    case SERIES_INPUT: return r->in_rate;
    }
    return NAN;
}

static weir_status point_of(const struct result_row *r, const struct series_options *o,
                            struct series_point *out, weir_error *err) {
    const struct price_row *row;
    double kilowatts = o->kilowatts;
    *out = (struct series_point){.row = r, .x = x_of(r, o), .y = y_of(r, o)};
    out->price = o->dollars > 0 ? o->dollars : NAN;
    if (o->prices) {
        weir_status s = price_of_run(o->prices, r->hardware, r->source, &row, err);
        if (s)
            return s;
        out->price = row->dollars;
        kilowatts = row->kilowatts;
    }
    out->cost = cost_of(out->y, out->price, kilowatts);
    return WEIR_OK;
}

static struct series *find(struct series_set *set, const char *name) {
    for (size_t i = 0; i < set->n; i++)
        if (!strcmp(set->series[i].name, name))
            return &set->series[i];
    struct series *more = realloc(set->series, (set->n + 1) * sizeof *more);
    if (!more)
        return NULL;
    set->series = more;
    struct series *s = &more[set->n++];
    *s = (struct series){0};
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

static weir_status no_memory(weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, "series", "no memory for its points");
}

static weir_status add(struct series_set *set, const struct result_row *r, bool one_workload,
                       const struct series_options *o, weir_error *err) {
    char name[256];
    struct series_point p;
    weir_status status = name_of(r, o->by, one_workload, name, err);
    if (status)
        return status;
    if (!(x_of(r, o) > 0) || !(y_of(r, o) > 0)) {
        set->left_out++;
        return WEIR_OK;
    }
    status = point_of(r, o, &p, err);
    if (status)
        return status;
    struct series *s = find(set, name);
    struct series_point *more = s ? realloc(s->point, (s->n + 1) * sizeof *more) : NULL;
    if (!more)
        return no_memory(err);
    s->point = more;
    s->point[s->n++] = p;
    return WEIR_OK;
}

static bool was_stopped(const struct result_row *r) {
    return !strcmp(r->state, "cancelled") || !strcmp(r->state, "aborted");
}

/* The points to walk over: those that may be set beside others, or what there is of the rest. */
static size_t choose(struct series *s, struct point *p) {
    size_t n = 0;
    for (int rest = 0; rest < 2 && !n; rest++) {
        s->not_comparable = rest;
        for (size_t i = 0; i < s->n; i++)
            if (rest ? !was_stopped(s->point[i].row) : !s->point[i].row->state[0])
                p[n++] = (struct point){s->point[i].x, s->point[i].y, i};
    }
    return n;
}

static weir_status walk(struct series *s, const struct series_options *o, weir_error *err) {
    struct point *p = calloc(s->n, sizeof *p);
    struct series_point *sorted = calloc(s->n, sizeof *sorted);
    if (!p || !sorted) {
        free(p);
        free(sorted);
        return no_memory(err);
    }
    s->n_frontier = frontier_of(
        p, choose(s, p), o->x == SERIES_INTERACTIVITY ? FRONTIER_UPPER_RIGHT : FRONTIER_UPPER_LEFT);
    for (size_t i = 0; i < s->n_frontier; i++) {
        sorted[i] = s->point[p[i].index];
        sorted[i].on_frontier = s->point[p[i].index].on_frontier = true;
    }
    for (size_t i = 0, to = s->n_frontier; i < s->n; i++)
        if (!s->point[i].on_frontier)
            sorted[to++] = s->point[i];
    free(s->point);
    s->point = sorted;
    free(p);
    return WEIR_OK;
}

/* Statistics of the axis that the rows do have, as "; they have median_intvty, ...". */
static void name_others(const struct results *rows, const struct series_options *o,
                        const char *axis, char *out, size_t cap) {
    size_t used = 0;
    out[0] = 0;
    for (int k = 0; k < STATISTIC_STD; k++) {
        struct series_options other = *o;
        bool has = false;
        other.statistic = (enum statistic)k;
        for (size_t i = 0; i < rows->n && !has; i++)
            has = x_of(&rows->row[i], &other) > 0 && y_of(&rows->row[i], o) > 0;
        if (has && used < cap)
            used += (size_t)snprintf(out + used, cap - used, "%s%s_%s", used ? ", " : "; there is ",
                                     statistic_name((enum statistic)k), axis);
    }
    if (used && used < cap)
        snprintf(out + used, cap - used, " (--statistic)");
}

static bool is_one_workload(const struct results *rows) {
    for (size_t i = 1; i < rows->n; i++)
        if (strcmp(rows->row[i].workload, rows->row[0].workload))
            return false;
    return true;
}

weir_status series_group(const struct results *rows, const struct series_options *o,
                         struct series_set *out, weir_error *err) {
    static const char *const axis[] = {"intvty", "ttft", "e2el"};
    static const char *const rate[] = {"tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu"};
    weir_status s = WEIR_OK;
    *out = (struct series_set){0};
    bool one_workload = is_one_workload(rows);
    for (size_t i = 0; !s && i < rows->n; i++)
        s = add(out, &rows->row[i], one_workload, o, err);
    for (size_t i = 0; !s && i < out->n; i++)
        s = walk(&out->series[i], o, err);
    if (!s && !out->n) {
        char others[200];
        name_others(rows, o, axis[o->x], others, sizeof others);
        s = weir_fail(err, WEIR_BAD_FILE, rows->n ? rows->row[0].source : "results",
                      "no result has both %s_%s and %s above 0%s", statistic_name(o->statistic),
                      axis[o->x], rate[o->y], others);
    }
    if (s)
        series_free(out);
    return s;
}

void series_free(struct series_set *s) {
    for (size_t i = 0; i < s->n; i++)
        free(s->series[i].point);
    free(s->series);
    *s = (struct series_set){0};
}

/* --------------------------------------------------------------------------------------- between
 */

enum { X, Y, CONCURRENCY, TTFT, DOLLARS, QUANTITIES };

static void spread(const struct series_point *p, const struct series_options *o,
                   double out[QUANTITIES]) {
    out[X] = p->x;
    out[Y] = p->y;
    out[CONCURRENCY] = p->row->conc;
    out[TTFT] = p->row->ttft[o->statistic];
    out[DOLLARS] = p->cost.dollars_per_million;
}

static void at(const struct series *s, const struct series_options *o, int axis, double q,
               enum interpolation how, bool extrapolate, struct series_at *out) {
    double result[QUANTITIES] = {NAN, NAN, NAN, NAN, NAN};
    double *knot = calloc(QUANTITIES * (s->n_frontier + 1), sizeof *knot);
    size_t n = s->n_frontier;
    *out = (struct series_at){0};
    /* Along y the points of a frontier stand in the other order, except in a latency's. */
    bool back = axis == Y && o->x == SERIES_INTERACTIVITY;
    for (size_t i = 0; knot && i < n; i++) {
        double v[QUANTITIES];
        spread(&s->point[back ? n - 1 - i : i], o, v);
        for (int k = 0; k < QUANTITIES; k++)
            knot[(size_t)k * n + i] = v[k];
    }
    out->found =
        knot && interpolate(knot + (size_t)axis * n, knot + (size_t)axis * n, n, q,
                            INTERPOLATE_LINEAR, extrapolate, &result[axis], &out->extrapolated);
    for (int k = 0; out->found && k < QUANTITIES; k++)
        if (k != axis)
            interpolate(knot + (size_t)axis * n, knot + (size_t)k * n, n, q, how, extrapolate,
                        &result[k], NULL);
    free(knot);
    out->x = axis == X && out->found ? q : result[X];
    out->y = axis == Y && out->found ? q : result[Y];
    out->concurrency = result[CONCURRENCY];
    out->ttft = result[TTFT];
    out->dollars_per_million = result[DOLLARS];
}

/* Dollars of a million tokens at a rate, where all points have one price. */
static double dollars_at(const struct series *s, double rate) {
    for (size_t i = 1; i < s->n_frontier; i++)
        if (s->point[i].price != s->point[0].price)
            return NAN;
    return s->n_frontier ? cost_of(rate, s->point[0].price, NAN).dollars_per_million : NAN;
}

void series_at_x(const struct series *s, const struct series_options *o, double x,
                 enum interpolation how, bool extrapolate, struct series_at *out) {
    at(s, o, X, x, how, extrapolate, out);
    out->dollars_at_y = out->found ? dollars_at(s, out->y) : NAN;
}

void series_at_y(const struct series *s, const struct series_options *o, double y,
                 enum interpolation how, bool extrapolate, struct series_at *out) {
    at(s, o, Y, y, how, extrapolate, out);
    /* At a given throughput a price says what a token costs; nothing is left to interpolate. */
    out->dollars_at_y = out->found ? dollars_at(s, y) : NAN;
    if (isfinite(out->dollars_at_y))
        out->dollars_per_million = out->dollars_at_y;
}
