/* frontier_view.c: text and JSON of `weir frontier`. Called by cmd_frontier.c. Ratios are those of
 * the quantity that was not held equal, so that above 1 is always better. */
#include "cli/frontier_view.h"

#include "base/plural.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const x_names[] = {"interactivity", "ttft", "e2el"};
static const char *const y_names[] = {"total", "output", "input"};
static const char *const interp_names[] = {"steffen", "linear"};

const char *frontier_x_name(enum series_x x) {
    return x_names[x];
}

/* ------------------------------------------------------------------------------------ compare */

static void answer(const struct frontier_view *c, const struct frontier_question *q, size_t i,
                   struct series_at *out) {
    (q->along_x ? series_at_x : series_at_y)(&c->set.series[i], &c->o, q->value, c->how,
                                             c->extrapolate, out);
}

/* How much better than the baseline in the quantity that was not given; above 1 is better. */
static double ratio(const struct frontier_view *c, const struct frontier_question *q,
                    const struct series_at *s, const struct series_at *base) {
    if (!s->found || !base->found)
        return NAN;
    if (q->along_x)
        return s->y / base->y;
    return c->o.x == SERIES_INTERACTIVITY ? s->x / base->x : base->x / s->x;
}

static json_t *real(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *rounded(double x) {
    return isfinite(x) ? json_integer(llround(x)) : json_null();
}

static json_t *answers_json(const struct frontier_view *c, const struct frontier_question *q) {
    struct series_at base, s;
    json_t *list = json_array();
    answer(c, q, c->baseline, &base);
    for (size_t i = 0; i < c->set.n; i++) {
        answer(c, q, i, &s);
        json_array_append_new(
            list,
            json_pack("{s:s, s:b, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "series",
                      c->set.series[i].name, "found", s.found, "extrapolated", s.extrapolated,
                      "comparable", !c->set.series[i].not_comparable, x_names[c->o.x],
                      real(s.found ? s.x : NAN), "throughput_per_gpu", real(s.found ? s.y : NAN),
                      "concurrency", rounded(s.concurrency), "ttft_seconds", real(s.ttft),
                      "dollars_per_million", real(s.dollars_per_million), "tokens_per_dollar",
                      real(1e6 / s.dollars_per_million), "dollars_per_million_at_throughput",
                      real(s.dollars_at_y), "ratio", real(ratio(c, q, &s, &base))));
    }
    return json_pack("{s:f, s:s, s:o}", "value", q->value, "baseline",
                     c->set.series[c->baseline].name, "series", list);
}

static const char *x_unit(const struct frontier_view *c) {
    return c->o.x == SERIES_INTERACTIVITY ? "tokens/s/user" : "s";
}

/* The end of the frontier that the question lies beyond, which is not the end of what was
 * measured: points that are not on it may well lie there. */
static void print_beyond(const struct frontier_view *c, const struct frontier_question *q,
                         const struct series *s) {
    if (!s->n_frontier) {
        printf("no point on its frontier\n");
        return;
    }
    const struct series_point *a = &s->point[0], *b = &s->point[s->n_frontier - 1];
    double of_a = q->along_x ? a->x : a->y, of_b = q->along_x ? b->x : b->y;
    const struct series_point *end = fabs(q->value - of_a) < fabs(q->value - of_b) ? a : b;
    printf("beyond the end of its frontier (%.1f tokens/s/GPU at %.4g %s)\n", end->y, end->x,
           x_unit(c));
}

static void print_answers(const struct frontier_view *c, const struct frontier_question *q) {
    struct series_at base, s;
    answer(c, q, c->baseline, &base);
    if (q->along_x)
        printf("\nAt %s %g %s:\n", x_names[c->o.x], q->value, x_unit(c));
    else
        printf("\nAt %g %s tokens/s and GPU:\n", q->value, y_names[c->o.y]);
    for (size_t i = 0; i < c->set.n; i++) {
        answer(c, q, i, &s);
        printf("  %-40s ", c->set.series[i].name);
        if (!s.found) {
            print_beyond(c, q, &c->set.series[i]);
            continue;
        }
        if (q->along_x)
            printf("%10.1f tokens/s/GPU", s.y);
        else if (c->o.x == SERIES_INTERACTIVITY)
            printf("%10.1f tokens/s/user", s.x);
        else
            printf("%10.4f s", s.x);
        if (isfinite(s.concurrency))
            printf("  concurrency %3lld", llround(s.concurrency));
        if (c->priced)
            printf("  $%.4f/M", s.dollars_per_million);
        if (c->priced && q->along_x && isfinite(s.dollars_at_y))
            printf(" ($%.4f/M at that throughput)", s.dollars_at_y);
        double r = ratio(c, q, &s, &base);
        if (i != c->baseline && isfinite(r))
            printf("  %.1fx", r);
        printf("%s%s\n", s.extrapolated ? "  (extrapolated)" : "",
               c->set.series[i].not_comparable ? "  [not comparable]" : "");
    }
    if (c->priced && q->along_x)
        printf("  Throughput and cost are each interpolated over the same points, so they need not "
               "be\n  reciprocals of each other; in brackets: the price over that throughput.\n");
}

/* --------------------------------------------------------------------------------------- series */

static json_t *point_json(const struct frontier_view *c, const struct series_point *p) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:s, s:s, s:s?, s:s}",
                     x_names[c->o.x], real(p->x), "throughput_per_gpu", real(p->y), "concurrency",
                     rounded(p->row->conc), "ttft_seconds", real(p->row->ttft[c->o.statistic]),
                     "dollars_per_million", real(p->cost.dollars_per_million), "tokens_per_dollar",
                     real(p->cost.tokens_per_dollar), "tokens_per_second_per_megawatt",
                     real(p->cost.tokens_per_second_per_megawatt), "joules_per_token",
                     real(p->cost.joules_per_token), "on_frontier", p->on_frontier, "label",
                     p->row->label, "workload", p->row->workload, "state",
                     p->row->state[0] ? p->row->state : NULL, "source", p->row->source);
}

static json_t *series_json(const struct frontier_view *c, const struct series *s) {
    json_t *points = json_array(), *frontier = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(points, point_json(c, &s->point[i]));
    for (size_t i = 0; i < s->n_frontier; i++)
        json_array_append_new(frontier, point_json(c, &s->point[i]));
    return json_pack("{s:s, s:b, s:o, s:o}", "name", s->name, "comparable", !s->not_comparable,
                     "points", points, "frontier", frontier);
}

/* Has the series two points of one concurrency and label? Then the run is named. */
static bool stands_twice(const struct series *s, const struct series_point *p) {
    for (size_t i = 0; i < s->n; i++)
        if (&s->point[i] != p && s->point[i].row->conc == p->row->conc &&
            !strcmp(s->point[i].row->label, p->row->label))
            return true;
    return false;
}

static void print_series(const struct frontier_view *c, const struct series *s) {
    bool power = false;
    for (size_t i = 0; i < s->n; i++)
        power = power || isfinite(s->point[i].cost.joules_per_token);
    printf("\n%s: %zu of %zu %s on the frontier%s\n", s->name, s->n_frontier, s->n,
           plural(s->n, "point", "points"),
           s->not_comparable ? ", none of them comparable with other results" : "");
    printf("  %14s %14s %6s %10s%s%s  %s\n",
           c->o.x == SERIES_INTERACTIVITY ? "tokens/s/user" : "seconds", "tokens/s/GPU", "conc",
           "TTFT s", c->priced ? "        $/M     M tok/$" : "",
           power ? "  M tok/s/MW   J/token" : "", "label");
    for (size_t i = 0; i < (c->all ? s->n : s->n_frontier); i++) {
        const struct series_point *p = &s->point[i];
        printf("%s %14.4f %14.1f ", p->on_frontier ? " " : "-", p->x, p->y);
        if (isfinite(p->row->conc))
            printf("%6.0f ", p->row->conc);
        else
            printf("%6s ", "");
        if (isfinite(p->row->ttft[c->o.statistic]))
            printf("%10.3f", p->row->ttft[c->o.statistic]);
        else
            printf("%10s", "");
        if (c->priced)
            printf(" %10.5f %11.4f", p->cost.dollars_per_million, p->cost.tokens_per_dollar / 1e6);
        if (power)
            printf(" %11.4f %9.4f", p->cost.tokens_per_second_per_megawatt / 1e6,
                   p->cost.joules_per_token);
        printf("  %s", p->row->label);
        if (p->row->state[0])
            printf("%s[%s, not comparable]", p->row->label[0] ? " " : "", p->row->state);
        if (stands_twice(s, p))
            printf("%s%s", p->row->label[0] || p->row->state[0] ? "  " : "", p->row->source);
        putchar('\n');
    }
}

/* ---------------------------------------------------------------------------- same concurrency */

/* The next concurrency above `after` at which the baseline and another series have a point; NAN:
 * none. */
static double shared_concurrency(const struct frontier_view *c, double after) {
    double best = NAN;
    for (size_t i = 0; i < c->set.n; i++)
        for (size_t k = 0; k < c->set.series[i].n; k++) {
            double conc = c->set.series[i].point[k].row->conc;
            if (i != c->baseline && conc > after && !(conc >= best))
                for (size_t b = 0; b < c->set.series[c->baseline].n; b++)
                    if (c->set.series[c->baseline].point[b].row->conc == conc)
                        best = conc;
        }
    return best;
}

/* The point with the greatest throughput at that concurrency, or NULL. */
static const struct series_point *point_at(const struct series *s, double concurrency) {
    const struct series_point *best = NULL;
    for (size_t i = 0; i < s->n; i++)
        if (s->point[i].row->conc == concurrency && (!best || s->point[i].y > best->y))
            best = &s->point[i];
    return best;
}

static double x_ratio(const struct frontier_view *c, double x, double base) {
    return c->o.x == SERIES_INTERACTIVITY ? x / base : base / x;
}

static json_t *same_json(const struct frontier_view *c) {
    json_t *all = json_array();
    for (double n = 0; c->same_concurrency && isfinite(n = shared_concurrency(c, n));) {
        json_t *list = json_array();
        const struct series_point *base = point_at(&c->set.series[c->baseline], n);
        for (size_t i = 0; i < c->set.n; i++) {
            const struct series_point *p = point_at(&c->set.series[i], n);
            if (p)
                json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o, s:o}", "series",
                                                      c->set.series[i].name, x_names[c->o.x],
                                                      real(p->x), "throughput_per_gpu", real(p->y),
                                                      "ratio", real(x_ratio(c, p->x, base->x)),
                                                      "throughput_ratio", real(p->y / base->y)));
        }
        json_array_append_new(
            all, json_pack("{s:I, s:o}", "concurrency", (json_int_t)llround(n), "series", list));
    }
    return all;
}

static void print_same(const struct frontier_view *c) {
    printf("\nAt the same concurrency, over %s:\n", c->set.series[c->baseline].name);
    for (double n = 0; isfinite(n = shared_concurrency(c, n));) {
        const struct series_point *base = point_at(&c->set.series[c->baseline], n);
        for (size_t i = 0; i < c->set.n; i++) {
            const struct series_point *p = point_at(&c->set.series[i], n);
            if (p && i != c->baseline)
                printf("  %5.0f  %-40s %s %.1fx, throughput %.2fx\n", n, c->set.series[i].name,
                       x_names[c->o.x], x_ratio(c, p->x, base->x), p->y / base->y);
        }
    }
}

json_t *frontier_json(const struct frontier_view *c) {
    static const char *const keys[] = {"at_interactivity", "at_latency", "at_throughput"};
    json_t *series = json_array();
    for (size_t i = 0; i < c->set.n; i++)
        json_array_append_new(series, series_json(c, &c->set.series[i]));
    const struct price_table *t = c->o.prices;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:o, s:o}", "x", x_names[c->o.x], "statistic",
        statistic_name(c->o.statistic), "throughput", y_names[c->o.y], "interpolation",
        interp_names[c->how], "left_out", (int)c->set.left_out, "prices",
        t ? json_pack("{s:s, s:s, s:s}", "name", t->name, "date", t->date, "source", t->source)
          : json_null(),
        "series", series);
    for (int k = 0; k < 3; k++) {
        json_t *list = json_array();
        for (size_t i = 0; i < c->n_questions; i++)
            if (!strcmp(c->question[i].key, keys[k]))
                json_array_append_new(list, answers_json(c, &c->question[i]));
        json_object_set_new(o, keys[k], list);
    }
    json_object_set_new(o, "same_concurrency", same_json(c));
    return o;
}

static void print_marks(const struct frontier_view *c) {
    size_t marked = 0, off = 0;
    for (size_t i = 0; i < c->set.n; i++)
        for (size_t k = 0; k < c->set.series[i].n; k++) {
            const struct series_point *p = &c->set.series[i].point[k];
            marked += p->row->state[0] != 0;
            off += p->row->state[0] && !p->on_frontier;
        }
    if (marked)
        printf("\n%zu %s of runs that are scaled, invalid, cancelled or aborted: not "
               "comparable with\nother results. %zu %s on no frontier (--all shows them).\n",
               marked, plural(marked, "point is", "points are"), off,
               plural(off, "stands", "stand"));
}

void frontier_print(const struct frontier_view *c) {
    printf("Throughput (%s) per GPU against %s (%s)", y_names[c->o.y], x_names[c->o.x],
           statistic_name(c->o.statistic));
    if (c->o.prices)
        printf("; prices: %s (%s)", c->o.prices->name, c->o.prices->date);
    printf("\n");
    for (size_t i = 0; i < c->set.n; i++)
        print_series(c, &c->set.series[i]);
    print_marks(c);
    if (c->set.left_out)
        printf("\n%zu %s left out.\n", c->set.left_out,
               plural(c->set.left_out, "result without these figures was",
                      "results without these figures were"));
    for (size_t i = 0; i < c->n_questions; i++)
        print_answers(c, &c->question[i]);
    if (c->same_concurrency && c->set.n > 1)
        print_same(c);
}
