/* gate.c: judges a candidate against a baseline. Called by `weir bench gate`. */
#include "bench/gate.h"

#include "base/plural.h"

#include <math.h>
#include <string.h>

weir_status gate_rule_parse(const char *text, double threshold, struct gate_rule *out,
                            weir_error *err) {
    char name[64];
    const char *equals = strchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : strlen(text);
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), text);
    out->threshold = threshold;
    if (equals) {
        char *end;
        out->threshold = strtod(equals + 1, &end);
        if (end == equals + 1 || *end || !(out->threshold >= 0 && out->threshold <= 1000))
            return weir_fail(err, WEIR_BAD_VALUE, "--metric",
                             "'%s': the threshold is a number of percent from 0 to 1000", text);
    }
    return metric_find(name, &out->metric, err);
}

static bool fault(struct gate *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fault(struct gate *g, const char *format, ...) {
    char **more = realloc(g->fault, (g->n_faults + 1) * sizeof *more), *text;
    va_list args;
    if (!more)
        return false;
    g->fault = more;
    va_start(args, format);
    bool good = vasprintf(&text, format, args) >= 0;
    va_end(args);
    if (good)
        g->fault[g->n_faults++] = text;
    return good;
}

/* A figure of another workload says nothing about this one. What a side does not tell is no
 * difference. */
static bool find_other_workload(struct gate *g, const struct compare_run *a,
                                const struct compare_run *b) {
    static const char *const keys[] = {"concurrency", "scenario", "dataset", "isl", "osl"};
    bool good = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *x = json_object_get(a->configuration, keys[i]);
        const json_t *y = json_object_get(b->configuration, keys[i]);
        if (!x || !y || json_equal(x, y))
            continue;
        char *old = json_dumps(x, JSON_ENCODE_ANY), *new = json_dumps(y, JSON_ENCODE_ANY);
        good = old &&
               new &&fault(g, "%s: %s is %s, the baseline's %s (--allow-different)", b->path,
                           keys[i], new, old) &&
               good;
        free(old);
        free(new);
    }
    return good;
}

/* Geometric mean over a side's runs of the share of the asked tokens that answers had; NAN: a run
 * of it does not tell. */
static double answer_share(const struct compare_side *s) {
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += log(s->run[i].answer_share);
    return exp(sum / (double)s->n);
}

/* Half of each answer takes half the time: without this, not answering would be an improvement. */
static bool find_other_answers(struct gate *g, const struct compare_side *a,
                               const struct compare_side *b) {
    double x = answer_share(a), y = answer_share(b);
    if (!(x > 0) || !(y > 0) || fabs(log(y / x)) <= log1p(RUN_LENGTH_SLACK))
        return true;
    return fault(
        g,
        "answers had %.1f %% of the tokens asked for, the baseline's had %.1f %%: they are "
        "not the same work (--allow-different lets it pass)",
        100 * y, 100 * x);
}

static bool find_faults(struct gate *g, const struct compare_side *a, const struct compare_side *b,
                        bool allow_invalid, bool allow_different) {
    bool good = true;
    if (!allow_different && a->n && b->n)
        good = find_other_workload(g, &a->run[0], &b->run[0]) && find_other_answers(g, a, b);
    for (size_t i = 0; i < b->n; i++) {
        const struct compare_run *r = &b->run[i];
        size_t k;
        json_t *reason;
        if (r->cancelled)
            good = fault(g, "%s: was cancelled", r->path) && good;
        if (!allow_invalid && !r->valid) {
            json_array_foreach(r->invalid, k, reason) good =
                fault(g, "%s: is not valid: %s", r->path, json_string_value(reason)) && good;
            if (!json_array_size(r->invalid))
                good = fault(g, "%s: is not valid", r->path) && good;
        }
        /* Of a file of another tool it is known only where it says that it is. */
        if (a->n && (!r->is_foreign || r->scaled) && (!a->run[0].is_foreign || a->run[0].scaled) &&
            r->scaled != a->run[0].scaled)
            good = fault(g, "%s: is %sscaled and the baseline is %s", r->path,
                         r->scaled ? "" : "not ", a->run[0].scaled ? "" : "not") &&
                   good;
    }
    return good;
}

/* An interval that holds the threshold and nearly everything else says nothing: of two baselines
 * that differ, it holds a halving and a doubling. */
static void judge_figure(struct gate_result *r, double resolution) {
    const struct ratio *x = &r->comparison.ratio;
    const struct metric *m = r->comparison.metric;
    r->worse = metric_worse_percent(m, x->value);
    /* Half the rate is twice the latency. */
    double unseen = m->higher_better   ? resolution
                    : resolution < 100 ? 100 * (1 / (1 - resolution / 100) - 1)
                                       : (double)INFINITY;
    r->has_interval = x->kind != INTERVAL_NONE && x->low <= x->high;
    r->worse_at_least = r->worse_at_most = r->worse;
    if (r->has_interval) {
        r->worse_at_least = metric_worse_percent(m, m->higher_better ? x->high : x->low);
        r->worse_at_most = metric_worse_percent(m, m->higher_better ? x->low : x->high);
    }
    if (!isfinite(x->baseline))
        r->outcome = GATE_SKIPPED;
    else if (!isfinite(x->candidate))
        r->outcome = GATE_NO_VALUE;
    else if (r->worse_at_least > r->threshold)
        r->outcome = GATE_REGRESSED;
    else
        r->outcome = r->worse_at_most > fmax(r->threshold, unseen) ? GATE_UNDECIDED : GATE_PASSED;
}

weir_status gate_judge(const struct compare_side *baseline, const struct compare_side *candidate,
                       const struct gate_rule *rule, size_t n, const struct run_noise *noise,
                       const struct bootstrap_options *o, double resolution, bool allow_invalid,
                       bool allow_different, struct gate *out, weir_error *err) {
    *out = (struct gate){.result = calloc(n + 1, sizeof *out->result), .n = n};
    const struct metric **m = calloc(n + 1, sizeof *m);
    struct comparison *c = calloc(n + 1, sizeof *c);
    struct bootstrap_options each = *o;
    each.confidence = 1 - (1 - o->confidence) / (double)n;
    weir_status status = WEIR_OK;
    if (!out->result || !m || !c ||
        !find_faults(out, baseline, candidate, allow_invalid, allow_different))
        status = weir_fail(err, WEIR_NO_MEMORY, "gate", "no memory");
    for (size_t i = 0; !status && i < n; i++)
        m[i] = rule[i].metric;
    if (!status)
        status = compare_sides(baseline, candidate, m, n, noise, &each, c, err);
    size_t judged = 0;
    bool good = true, undecided = false;
    for (size_t i = 0; !status && i < n; i++) {
        struct gate_result *r = &out->result[i];
        r->comparison = c[i];
        r->threshold = rule[i].threshold;
        judge_figure(r, resolution);
        judged += r->outcome != GATE_SKIPPED;
        good = good && r->outcome != GATE_REGRESSED && r->outcome != GATE_NO_VALUE;
        undecided = undecided || r->outcome == GATE_UNDECIDED;
    }
    if (!status && !judged && !fault(out, "the baseline has none of the figures asked for"))
        status = weir_fail(err, WEIR_NO_MEMORY, "gate", "no memory");
    good = good && !out->n_faults;
    out->passed = good && !undecided;
    out->undecided = good && undecided;
    free(m);
    free(c);
    if (status)
        gate_free(out);
    return status;
}

void gate_free(struct gate *g) {
    for (size_t i = 0; i < g->n_faults; i++)
        free(g->fault[i]);
    free(g->fault);
    free(g->result);
    *g = (struct gate){0};
}

static const char *outcome_name(enum gate_outcome o) {
    switch (o) {
    case GATE_PASSED: return "passed";
    case GATE_REGRESSED: return "REGRESSED";
    case GATE_NO_VALUE: return "NO VALUE";
    case GATE_SKIPPED: return "not judged: the baseline has no value";
    case GATE_UNDECIDED: return "INCONCLUSIVE";
    }
    return "";
}

static const char *change(double worse, char out[48]) {
    if (!isfinite(worse))
        snprintf(out, 48, "-");
    else
        snprintf(out, 48, "%.2f %% %s", fabs(worse), worse > 0 ? "worse" : "better");
    return out;
}

/* From the better end to the worse one where they differ in sign; else the lesser change first. */
static const char *interval(const struct gate_result *r, char out[64]) {
    double from = r->worse_at_least, to = r->worse_at_most;
    if (!r->has_interval)
        snprintf(out, 64, "none");
    else if ((from > 0) == (to > 0))
        snprintf(out, 64, "%.2f .. %.2f %% %s", fmin(fabs(from), fabs(to)),
                 fmax(fabs(from), fabs(to)), to > 0 ? "worse" : "better");
    else
        snprintf(out, 64, "%.2f %% better .. %.2f %% worse", fabs(from), to);
    return out;
}

/* A value as people read it, "-" where there is none. */
static const char *shown(const struct metric *m, double v, char out[32]) {
    if (!isfinite(v))
        return "-";
    snprintf(out, 32, "%.5g", metric_shown(m, v));
    return out;
}

static void print_result(FILE *out, const struct gate_result *r) {
    const struct metric *m = r->comparison.metric;
    const struct ratio *x = &r->comparison.ratio;
    char a[48], b[64], was[32], is[32];
    fprintf(out, "%-20s %-10s %12s %12s %16s %32s %7g %%  %s%s\n", m->name, metric_shown_unit(m),
            shown(m, x->baseline, was), shown(m, x->candidate, is), change(r->worse, a),
            interval(r, b), r->threshold, outcome_name(r->outcome),
            !r->has_interval && r->outcome == GATE_REGRESSED
                ? " (no interval: judged by the figure alone)"
                : "");
}

/* The last line names everything that fails. */
static void print_end(FILE *out, const struct gate *g) {
    bool first = true;
    if (g->passed) {
        fputs("\npassed\n", out);
        return;
    }
    fputs(g->undecided ? "\ninconclusive: " : "\nfailed: ", out);
    for (size_t i = 0; i < g->n; i++)
        if (g->result[i].outcome == GATE_REGRESSED || g->result[i].outcome == GATE_NO_VALUE ||
            g->result[i].outcome == GATE_UNDECIDED) {
            fprintf(out, "%s%s", first ? "" : ", ", g->result[i].comparison.metric->name);
            first = false;
        }
    for (size_t i = 0; i < g->n_faults; i++)
        fprintf(out, "%s%s", i ? "; " : first ? "not eligible: " : "; not eligible: ", g->fault[i]);
    if (g->undecided)
        fputs(": the intervals are too wide to tell; give more repeats or longer runs", out);
    fputc('\n', out);
}

void gate_print(FILE *out, const struct gate *g, const struct compare_side *baseline,
                const struct compare_side *candidate) {
    fprintf(out, "baseline   %s (%zu %s)\ncandidate  %s (%zu %s)\n\n", baseline->name, baseline->n,
            plural(baseline->n, "run", "runs"), candidate->name, candidate->n,
            plural(candidate->n, "run", "runs"));
    fprintf(out, "%-20s %-10s %12s %12s %16s %32s %9s\n", "", "", "baseline", "candidate", "change",
            "interval of the change", "allowed");
    for (size_t i = 0; i < g->n; i++)
        print_result(out, &g->result[i]);
    json_t *differ = compare_differences((const struct compare_side[]){*baseline, *candidate}, 2);
    const char *key;
    json_t *list;
    bool first = true;
    json_object_foreach(differ, key, list) {
        if (configuration_is_version(key) || configuration_is_incidental(key))
            continue;
        fprintf(out, "%s%s", first ? "\nnote: the configurations differ in " : ", ", key);
        first = false;
    }
    if (!first)
        fputc('\n', out);
    json_decref(differ);
    print_end(out, g);
}

static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *gate_json(const struct gate *g, const struct compare_side *baseline,
                  const struct compare_side *candidate, const struct bootstrap_options *o) {
    static const char *const names[] = {"passed", "regressed", "no value", "not judged",
                                        "inconclusive"};
    json_t *metrics = json_object(), *faults = json_array(), *regressed = json_array(),
           *undecided = json_array();
    for (size_t i = 0; i < g->n; i++) {
        const struct gate_result *r = &g->result[i];
        const char *name = r->comparison.metric->name;
        json_object_set_new(
            metrics, name,
            json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:s}", "baseline",
                      number(r->comparison.ratio.baseline), "candidate",
                      number(r->comparison.ratio.candidate), "ratio",
                      number(r->comparison.ratio.value), "low", number(r->comparison.ratio.low),
                      "high", number(r->comparison.ratio.high), "worse_percent", number(r->worse),
                      "worse_at_least_percent", number(r->worse_at_least), "worse_at_most_percent",
                      number(r->worse_at_most), "threshold_percent", r->threshold, "outcome",
                      names[r->outcome]));
        if (r->outcome == GATE_REGRESSED || r->outcome == GATE_NO_VALUE)
            json_array_append_new(regressed, json_string(name));
        if (r->outcome == GATE_UNDECIDED)
            json_array_append_new(undecided, json_string(name));
    }
    for (size_t i = 0; i < g->n_faults; i++)
        json_array_append_new(faults, json_string(g->fault[i]));
    return json_pack("{s:b, s:b, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "passed", g->passed,
                     "inconclusive", g->undecided, "confidence", o->confidence, "regressed",
                     regressed, "undecided", undecided, "faults", faults, "metrics", metrics,
                     "baseline", compare_side_json(baseline), "candidate",
                     compare_side_json(candidate));
}
