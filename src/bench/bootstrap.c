/* bootstrap.c: intervals of ratios. A draw counts each play a Poisson(1) number of times that is a
 * function of (seed, draw, key of the play): two runs that played the same session count it equally
 * often, so its length cancels, and no list of drawn indices is needed.
 * Invariant that bites: with few plays the spread of draws is too small (by the factor sqrt(1 -
 * 1/n) and by the tails of Student's t); widened() makes up for both. */
#include "bench/bootstrap.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

/* Continued fraction of the incomplete beta function (Lentz). */
static double beta_fraction(double a, double b, double x) {
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
    double h = d;
    for (int m = 1; m <= 300; m++) {
        double e = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        d = 1 + e * d;
        c = 1 + e / c;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        h *= d * c;
        e = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 + e * d;
        c = 1 + e / c;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        h *= d * c;
        if (fabs(d * c - 1) < 1e-14)
            break;
    }
    return h;
}

static double beta_regular(double a, double b, double x) {
    if (x <= 0)
        return 0;
    if (x >= 1)
        return 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                     : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/* P(T > t), t >= 0. */
static double student_tail(double t, double df) {
    if (isinf(df) || df > 1e6)
        return 0.5 * erfc(t * M_SQRT1_2);
    return 0.5 * beta_regular(df / 2, 0.5, df / (df + t * t));
}

double student_quantile(double p, double df) {
    if (p < 0.5)
        return -student_quantile(1 - p, df);
    double low = 0, high = 1;
    while (student_tail(high, df) > 1 - p && high < 1e12)
        high *= 2;
    for (int i = 0; i < 200 && high - low > 1e-12 * high; i++) {
        double middle = 0.5 * (low + high);
        *(student_tail(middle, df) > 1 - p ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

struct bootstrap_options bootstrap_options_default(void) {
    return (struct bootstrap_options){.seed = 42, .draws = 2000, .confidence = 0.95};
}

void run_noise_add(struct run_noise *n, const double *values, size_t count) {
    double mean = 0;
    size_t k = 0;
    for (size_t i = 0; i < count; i++)
        if (values[i] > 0) {
            mean += log(values[i]);
            k++;
        }
    if (k < 2)
        return;
    mean /= (double)k;
    for (size_t i = 0; i < count; i++)
        if (values[i] > 0)
            n->sum += (log(values[i]) - mean) * (log(values[i]) - mean);
    n->df += (uint32_t)(k - 1);
}

static uint8_t poisson(double u) {
    double p = 0.36787944117144233, sum = p; /* 1/e */
    uint8_t k = 0;
    while (u > sum && k < 16) {
        k++;
        p /= k;
        sum += p;
    }
    return k;
}

static void weigh(const struct sample *s, uint64_t seed, uint64_t draw, uint8_t *weight) {
    for (uint32_t i = 0; i < s->n_units; i++)
        weight[i] = poisson(rng_unit(rng_at(seed, draw, s->unit[i].key)));
}

static const struct sample *sample_at(const struct measured *runs, size_t n, size_t i) {
    return runs[i].sample && runs[i].sample->n_units > 1 ? runs[i].sample : NULL;
}

/* Plays behind a side's figures: those of its richest run, as repeats play the same ones. */
static uint32_t plays_of(const struct measured *runs, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const struct sample *s = sample_at(runs, n, i);
        if (s && s->n_units > most)
            most = s->n_units;
    }
    return most;
}

/* The first metric of the same statistic, of which this is the reciprocal; or itself. */
static size_t twin_of(const struct metric *const *m, size_t k) {
    for (size_t i = 0; i < k; i++)
        if (m[i]->quantity == m[k]->quantity && m[k]->quantity < QUANTITY_LATENCIES &&
            m[i]->statistic == m[k]->statistic && m[i]->reciprocal != m[k]->reciprocal)
            return i;
    return k;
}

/* What a draw adds to ln of the side's figure, for each metric: the mean over its runs. */
static void side_shift(const struct metric *const *m, size_t n_m, const struct measured *runs,
                       size_t n, const struct bootstrap_options *o, uint64_t draw, uint8_t *weight,
                       const double *plain, double *shift, double *now) {
    for (size_t k = 0; k < n_m; k++)
        shift[k] = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        const struct sample *s = sample_at(runs, n, i);
        if (!s)
            continue;
        weigh(s, o->seed, draw, weight);
        for (size_t k = 0; k < n_m; k++) {
            /* Interactivity is the reciprocal of what the time between tokens has cost already. */
            size_t twin = twin_of(m, k);
            now[k] = twin < k ? -now[twin] : sample_log(s, m[k], weight);
            shift[k] += now[k] - plain[i * n_m + k];
        }
        used++;
    }
    for (size_t k = 0; k < n_m; k++)
        shift[k] /= (double)used;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Geometric mean; a run without the figure makes it unknown. */
static double centre(const struct measured *runs, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += runs[i].value > 0 ? log(runs[i].value) : NAN;
    return exp(sum / (double)n);
}

static void finish(struct ratio *r, double *draws, size_t n, struct run_noise noise, double n_a,
                   double n_b, double confidence) {
    double tail = 0.5 * (1 - confidence), below = 0, above = 0;
    bool by_records = n >= 20, by_repeats = noise.df > 0;
    r->noise_percent = by_repeats ? 100 * sqrt(noise.sum / noise.df) : NAN;
    if (by_records) {
        qsort(draws, n, sizeof *draws, by_size);
        double df = r->plays - 1;
        double wider = student_quantile(1 - tail, df) / student_quantile(1 - tail, INFINITY) *
                       sqrt(r->plays / df);
        below = fmax(0, -percentile(draws, n, 100 * tail)) * wider;
        above = fmax(0, percentile(draws, n, 100 * (1 - tail))) * wider;
    }
    if (by_repeats) {
        double half =
            student_quantile(1 - tail, noise.df) * sqrt(noise.sum / noise.df * (1 / n_a + 1 / n_b));
        below = hypot(below, half);
        above = hypot(above, half);
    }
    r->kind = by_records && by_repeats ? INTERVAL_BOTH
              : by_records             ? INTERVAL_RECORDS
              : by_repeats             ? INTERVAL_REPEATS
                                       : INTERVAL_NONE;
    r->low = r->kind == INTERVAL_NONE ? NAN : r->value * exp(-below);
    r->high = r->kind == INTERVAL_NONE ? NAN : r->value * exp(above);
}

/* ln of each metric with every play counted once. */
static void plain_logs(const struct metric *const *m, size_t n_m, const struct measured *runs,
                       size_t n, uint8_t *weight, double *out) {
    for (size_t i = 0; i < n; i++) {
        const struct sample *s = sample_at(runs, n, i);
        if (!s)
            continue;
        memset(weight, 1, s->n_units);
        for (size_t k = 0; k < n_m; k++)
            out[i * n_m + k] = sample_log(s, m[k], weight);
    }
}

weir_status bootstrap_ratios(const struct metric *const *m, size_t n_m, const struct measured *a,
                             size_t n_a, const struct measured *b, size_t n_b,
                             const struct run_noise *noise, const struct bootstrap_options *o,
                             struct ratio *out, weir_error *err) {
    uint32_t plays_a = plays_of(a, n_a), plays_b = plays_of(b, n_b);
    uint32_t most = plays_a > plays_b ? plays_a : plays_b;
    size_t n_runs = n_a > n_b ? n_a : n_b, draws = plays_a && plays_b ? o->draws : 0;
    uint8_t *weight = malloc((size_t)most + 1);
    double *drawn = malloc((n_m * draws + 1) * sizeof *drawn);
    double *plain_a = calloc(n_a * n_m + 1, sizeof *plain_a);
    double *plain_b = calloc(n_b * n_m + 1, sizeof *plain_b);
    double *shift = calloc(3 * n_m + 1, sizeof *shift), *now = shift ? shift + 2 * n_m : NULL;
    double *value = calloc(n_runs + 1, sizeof *value);
    size_t *n_drawn = calloc(n_m + 1, sizeof *n_drawn);
    bool good = weight && drawn && plain_a && plain_b && shift && value && n_drawn;
    if (good && draws) {
        plain_logs(m, n_m, a, n_a, weight, plain_a);
        plain_logs(m, n_m, b, n_b, weight, plain_b);
    }
    for (size_t d = 0; good && d < draws; d++) {
        side_shift(m, n_m, a, n_a, o, d, weight, plain_a, shift, now);
        side_shift(m, n_m, b, n_b, o, d, weight, plain_b, shift + n_m, now);
        for (size_t k = 0; k < n_m; k++)
            if (isfinite(shift[n_m + k] - shift[k]))
                drawn[k * draws + n_drawn[k]++] = shift[n_m + k] - shift[k];
    }
    for (size_t k = 0; good && k < n_m; k++) {
        struct run_noise all = noise ? noise[k] : (struct run_noise){0};
        struct ratio *r = &out[k];
        *r = (struct ratio){.plays = plays_a < plays_b ? plays_a : plays_b};
        for (int side = 0; side < 2; side++) {
            const struct measured *runs = side ? b + k * n_b : a + k * n_a;
            size_t n = side ? n_b : n_a;
            for (size_t i = 0; i < n; i++)
                value[i] = runs[i].value;
            run_noise_add(&all, value, n);
            *(side ? &r->candidate : &r->baseline) = centre(runs, n);
        }
        r->value = r->candidate / r->baseline;
        finish(r, drawn + k * draws, n_drawn[k], all, (double)n_a, (double)n_b, o->confidence);
    }
    free(weight);
    free(drawn);
    free(plain_a);
    free(plain_b);
    free(shift);
    free(value);
    free(n_drawn);
    return good ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
}
