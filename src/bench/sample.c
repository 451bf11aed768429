/* sample.c: groups a run's calls by session play and weighs them. Invariant that bites: tokens per
 * second of a closed loop is a ratio of two sums over plays, tokens and lane time; weighing tokens
 * alone would take a play that was long for one that was fast. */
#include "bench/sample.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

struct ordered {
    const struct call_record *r;
    uint64_t conversation;
};

static int compare_u64(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* Sessions of a workload that is played as a whole have the number of play in common. */
static int by_unit(const struct ordered *x, const struct ordered *y) {
    int c = compare_u64(x->r->lane, y->r->lane);
    if (!c)
        c = compare_u64(x->r->play, y->r->play);
    return c ? c : compare_u64(x->conversation, y->conversation);
}

static int by_unit_and_time(const void *a, const void *b) {
    const struct ordered *x = a, *y = b;
    int c = by_unit(x, y);
    return c ? c : (x->r->start > y->r->start) - (x->r->start < y->r->start);
}

static int by_value(const void *a, const void *b) {
    double x = ((const struct sample_value *)a)->v, y = ((const struct sample_value *)b)->v;
    return (x > y) - (x < y);
}

static uint64_t hash_text(const char *s) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; s && *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return rng_mix(h);
}

/* First and last moment of each unit, for its share of the lane's time. */
struct extent {
    int64_t from, to;
    uint32_t lane;
    uint64_t play, conversation;
    uint32_t unit;
};

static int by_lane_and_time(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    int c = compare_u64(x->lane, y->lane);
    return c ? c : (x->from > y->from) - (x->from < y->from);
}

static int by_conversation(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    int c = compare_u64(x->conversation, y->conversation);
    return c ? c : compare_u64(x->play, y->play);
}

/* Divides the time of each lane among its plays. False where plays of a lane overlap by more than
 * the moment between the end of a call and the news of it. */
static bool share_lane_time(struct sample *s, struct extent *e, int64_t begin, int64_t end) {
    double overlap = 0, all = 0;
    qsort(e, s->n_units, sizeof *e, by_lane_and_time);
    for (uint32_t i = 0; i < s->n_units; i++) {
        bool first = i == 0 || e[i - 1].lane != e[i].lane;
        bool last = i + 1 == s->n_units || e[i + 1].lane != e[i].lane;
        int64_t from = first ? begin : e[i - 1].to, to = last && end > e[i].to ? end : e[i].to;
        if (!first && e[i].from < e[i - 1].to)
            overlap += (double)(e[i - 1].to - e[i].from);
        if (from > e[i].from)
            from = e[i].from;
        s->unit[e[i].unit].span = (double)(to - from) * 1e-9;
        all += (double)(to - from);
    }
    return overlap <= 0.01 * all;
}

/* Numbers the plays of each conversation, so that keys agree between runs of one trace. */
static void make_keys(struct sample *s, struct extent *e) {
    qsort(e, s->n_units, sizeof *e, by_conversation);
    uint32_t nth = 0;
    for (uint32_t i = 0; i < s->n_units; i++) {
        nth = i && e[i - 1].conversation == e[i].conversation ? nth + 1 : 0;
        s->unit[e[i].unit].key = rng_mix(e[i].conversation ^ rng_mix(nth));
    }
}

static void add_call(struct sample *s, const struct call_record *r, uint32_t unit) {
    struct call_metrics m;
    call_metrics_of(r, &m);
    const double v[QUANTITY_LATENCIES] = {m.ttft, m.itl, m.latency};
    struct sample_unit *u = &s->unit[unit];
    u->in += (double)r->in;
    u->out += (double)r->out;
    for (int q = 0; q < QUANTITY_LATENCIES; q++)
        if (isfinite(v[q]) && v[q] > 0) {
            s->sorted[q][s->n[q]++] = (struct sample_value){v[q], unit};
            u->calls[q]++;
            u->sum[q] += v[q];
        }
}

weir_status sample_of(const struct run *r, struct sample *out, weir_error *err) {
    *out = (struct sample){0};
    size_t room = (size_t)r->n_records + 1;
    struct ordered *o = calloc(room, sizeof *o);
    struct extent *e = calloc(room, sizeof *e);
    out->unit = calloc(room, sizeof *out->unit);
    bool good = o && e && out->unit;
    for (int q = 0; q < QUANTITY_LATENCIES; q++)
        good = (out->sorted[q] = malloc(room * sizeof *out->sorted[q])) && good;
    if (!good) {
        free(o);
        free(e);
        sample_free(out);
        return weir_fail(err, WEIR_NO_MEMORY, "comparison", "no memory");
    }
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_records; i++)
        if (call_record_counts(&r->records[i]))
            o[n++] = (struct ordered){&r->records[i], hash_text(r->records[i].conversation)};
    qsort(o, n, sizeof *o, by_unit_and_time);
    int64_t begin = INT64_MAX, end = INT64_MIN;
    for (size_t i = 0; i < n; i++) {
        const struct call_record *c = o[i].r;
        if (i == 0 || by_unit(&o[i - 1], &o[i]))
            e[out->n_units] = (struct extent){.from = c->start,
                                              .to = c->end,
                                              .lane = c->lane,
                                              .play = c->play,
                                              .conversation = o[i].conversation,
                                              .unit = out->n_units++};
        struct extent *mine = &e[out->n_units - 1];
        if (c->start < mine->from)
            mine->from = c->start;
        if (c->end > mine->to)
            mine->to = c->end;
        begin = c->start < begin ? c->start : begin;
        end = c->end > end ? c->end : end;
        add_call(out, c, mine->unit);
    }
    for (int q = 0; q < QUANTITY_LATENCIES; q++)
        qsort(out->sorted[q], out->n[q], sizeof *out->sorted[q], by_value);
    out->open_loop = !share_lane_time(out, e, begin, end);
    make_keys(out, e);
    free(o);
    free(e);
    return WEIR_OK;
}

void sample_free(struct sample *s) {
    for (int q = 0; q < QUANTITY_LATENCIES; q++)
        free(s->sorted[q]);
    free(s->unit);
    *s = (struct sample){0};
}

static double log_rate(const struct sample *s, enum quantity q, const uint8_t *weight) {
    double tokens = 0, span = 0;
    if (s->open_loop)
        return NAN;
    for (uint32_t i = 0; i < s->n_units; i++) {
        const struct sample_unit *u = &s->unit[i];
        tokens +=
            weight[i] * ((q != QUANTITY_OUTPUT ? u->in : 0) + (q != QUANTITY_INPUT ? u->out : 0));
        span += weight[i] * u->span;
    }
    return log(tokens / span);
}

double sample_log(const struct sample *s, const struct metric *m, const uint8_t *weight) {
    if (m->quantity >= QUANTITY_LATENCIES)
        return log_rate(s, m->quantity, weight);
    enum quantity q = m->quantity;
    uint64_t n = 0;
    double sum = 0;
    for (uint32_t i = 0; i < s->n_units; i++) {
        n += (uint64_t)weight[i] * s->unit[i].calls[q];
        sum += weight[i] * s->unit[i].sum[q];
    }
    if (!n)
        return NAN;
    double sign = m->reciprocal ? -1 : 1;
    if (m->statistic == METRIC_MEAN)
        return sign * log(sum / (double)n);
    /* Linear between the ranks of the list in which each value stands as often as its unit. */
    double k = (double)(n - 1) * m->statistic / 100, low = 0;
    uint64_t f = (uint64_t)k, seen = 0;
    bool have_low = false;
    for (size_t i = 0; i < s->n[q]; i++) {
        seen += weight[s->sorted[q][i].unit];
        if (!have_low && seen > f) {
            low = s->sorted[q][i].v;
            have_low = true;
        }
        if (seen > f + 1 || (have_low && k == (double)f))
            return sign * log(low + (k - (double)f) * (s->sorted[q][i].v - low));
    }
    return NAN;
}
