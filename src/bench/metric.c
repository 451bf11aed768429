/* metric.c: names of figures and where they stand in a summary and in a flat row. */
#include "bench/metric.h"

#include <math.h>
#include <string.h>

#define LATENCY(stat, number)                                                                      \
    {stat "_ttft", "s", QUANTITY_TTFT, number, false, false},                                      \
        {stat "_itl", "s", QUANTITY_ITL, number, false, false},                                    \
        {stat "_e2el", "s", QUANTITY_E2EL, number, false, false},                                  \
        {stat "_intvty", "tok/s/user", QUANTITY_ITL, number, true, true},

static const struct metric metrics[] = {
    {"tput_per_gpu", "tok/s/GPU", QUANTITY_TOTAL, 0, false, true},
    {"output_tput_per_gpu", "tok/s/GPU", QUANTITY_OUTPUT, 0, false, true},
    {"input_tput_per_gpu", "tok/s/GPU", QUANTITY_INPUT, 0, false, true},
    LATENCY("median", 50) LATENCY("p90", 90) LATENCY("mean", METRIC_MEAN) LATENCY("p75", 75)
        LATENCY("p95", 95) LATENCY("p99", 99)};

const struct metric *metric_at(size_t i) {
    return i < sizeof metrics / sizeof metrics[0] ? &metrics[i] : NULL;
}

/* The three rates, medians and 90th percentiles stand first in the list. */
const struct metric *metric_usual(size_t i) {
    return i < 11 ? &metrics[i] : NULL;
}

const struct metric *metric_of_gate(size_t i) {
    static const char *const names[] = {"tput_per_gpu", "p90_intvty", "p90_ttft"};
    const struct metric *m = NULL;
    if (i < sizeof names / sizeof names[0])
        metric_find(names[i], &m, NULL);
    return m;
}

weir_status metric_find(const char *name, const struct metric **out, weir_error *err) {
    char wanted[64], list[400];
    size_t n = 0;
    snprintf(wanted, sizeof wanted, "%s%s", strncmp(name, "p50_", 4) ? "" : "median",
             strncmp(name, "p50_", 4) ? name : name + 3);
    char *tail = strstr(wanted, "_tpot");
    if (tail && !tail[5])
        strcpy(tail, "_itl");
    for (size_t i = 0; metric_at(i); i++)
        if (!strcmp(metrics[i].name, wanted)) {
            *out = &metrics[i];
            return WEIR_OK;
        }
    for (size_t i = 0; metric_usual(i); i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", metrics[i].name);
    return weir_fail(err, WEIR_BAD_VALUE, "--metric",
                     "'%s' is none of %s, nor one of those with mean, p75, p95 or p99", name, list);
}

static bool is_time(const struct metric *m) {
    return !strcmp(m->unit, "s");
}

const char *metric_shown_unit(const struct metric *m) {
    return is_time(m) ? "ms" : m->unit;
}

double metric_shown(const struct metric *m, double v) {
    return is_time(m) ? v * 1e3 : v;
}

static double statistic_of(const struct distribution *d, int statistic) {
    switch (statistic) {
    case METRIC_MEAN: return d->mean;
    case 50: return d->p50;
    case 75: return d->p75;
    case 90: return d->p90;
    case 95: return d->p95;
    default: return d->p99;
    }
}

double metric_of_summary(const struct metric *m, const struct run_summary *s) {
    double v = NAN;
    switch (m->quantity) {
    case QUANTITY_TTFT: v = statistic_of(&s->ttft, m->statistic); break;
    case QUANTITY_ITL: v = statistic_of(&s->itl, m->statistic); break;
    case QUANTITY_E2EL: v = statistic_of(&s->latency, m->statistic); break;
    case QUANTITY_TOTAL: v = s->per_gpu_total; break;
    case QUANTITY_OUTPUT: v = s->per_gpu_out; break;
    case QUANTITY_INPUT: v = s->per_gpu_in; break;
    }
    if (m->reciprocal)
        v = 1 / v;
    return isfinite(v) && v > 0 ? v : NAN;
}

static double statistic_in(const double *v, int statistic) {
    switch (statistic) {
    case METRIC_MEAN: return v[STATISTIC_MEAN];
    case 50: return v[STATISTIC_MEDIAN];
    case 75: return v[STATISTIC_P75];
    case 90: return v[STATISTIC_P90];
    case 95: return v[STATISTIC_P95];
    default: return v[STATISTIC_P99];
    }
}

double metric_of_result(const struct metric *m, const struct result_row *row) {
    double v = NAN;
    switch (m->quantity) {
    case QUANTITY_TTFT: v = statistic_in(row->ttft, m->statistic); break;
    /* A call's mean gap: what other tools call ITL may be the gaps of all chunks. */
    case QUANTITY_ITL:
        v = statistic_in(m->reciprocal ? row->intvty : row->tpot, m->statistic);
        break;
    case QUANTITY_E2EL: v = statistic_in(row->e2el, m->statistic); break;
    case QUANTITY_TOTAL: v = row->total_rate; break;
    case QUANTITY_OUTPUT: v = row->out_rate; break;
    case QUANTITY_INPUT: v = row->in_rate; break;
    }
    return isfinite(v) && v > 0 ? v : NAN;
}

double metric_of_row(const struct metric *m, const json_t *row) {
    const json_t *v = json_object_get(row, m->name);
    return json_is_number(v) && json_number_value(v) > 0 ? json_number_value(v) : NAN;
}

double metric_worse_percent(const struct metric *m, double ratio) {
    return 100 * (m->higher_better ? 1 - ratio : ratio - 1);
}
