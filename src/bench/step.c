/* step.c: see step.h. Called by the command and by tests.
 * The clock is read once an operation, by the member that everybody else waits for; costs are
 * formed behind the step from the records themselves. The roof is measured before and behind every
 * sample, so that a spell of a slower machine meets both.
 * Invariant that bites: how many experts were chosen is known only between two operations of the
 * step, since the next layer writes its choices over them. */
#include "bench/step.h"

#include "base/clock.h"
#include "bench/kernels_machine.h"
#include "bench/quantile.h"
#include "bench/step_cost.h"
#include "bench/step_device.h"
#include "bench/step_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sums of one sample. */
struct sums {
    double seconds[OP_COUNT], total;
    double bytes[OP_COUNT], flops[OP_COUNT], roof[OP_COUNT], read_bytes;
    double largest[OP_COUNT]; /* roof of the largest part, which names the limit */
    const char *limit[OP_COUNT];
    uint32_t calls[OP_COUNT];
};

struct profile {
    const struct step_options *o;
    struct step_rig rig;
    uint32_t rows;       /* of the step in progress */
    double *begin;       /* [n_ops + 1] */
    uint32_t *distinct;  /* [n_ops] experts that the operation works on */
    unsigned char *seen; /* [experts] */
    struct sums *sample; /* [STEP_SAMPLES] */
    struct roof *roof;   /* [STEP_SAMPLES] */
    struct team *team;   /* of the meter */
    struct roof_meter *meter;
    uint32_t done, of;
    weir_status status; /* of a device: the first failure ends the measurement */
    weir_error *err;
};

/* ------------------------------------------------------------------------------------ one step */

static uint32_t count_distinct(struct profile *p, const struct op_route *a) {
    uint32_t n = 0;
    memset(p->seen, 0, a->experts);
    for (size_t i = 0; i < (size_t)p->rows * a->top_k; i++) {
        n += !p->seen[a->ids[i]];
        p->seen[a->ids[i]] = 1;
    }
    return n;
}

static void watch(void *arg, uint32_t i) {
    struct profile *p = arg;
    p->begin[i] = (double)clock_ns() * 1e-9;
    if (i == 0 || p->rig.op[i - 1].kind != OP_ROUTE ||
        (p->rig.op[i - 1].most_rows && p->rows > p->rig.op[i - 1].most_rows))
        return;
    const struct op_route *route = &p->rig.op[i - 1].u.route;
    uint32_t n = count_distinct(p, route);
    for (uint32_t k = i; k < p->rig.n_ops && p->rig.op[k].layer == p->rig.op[i - 1].layer; k++)
        if ((p->rig.op[k].kind == OP_EXPERTS_UP || p->rig.op[k].kind == OP_EXPERTS_DOWN) &&
            p->rig.op[k].u.experts.ids == route->ids)
            p->distinct[k] = n;
}

/* Adds what the step just made took, and what it would take under this roof. */
static void add_step(struct profile *p, const struct step_shape *shape, const struct roof *roof,
                     struct sums *to) {
    for (uint32_t i = 0; i < p->rig.n_ops; i++) {
        struct step_part part[STEP_PARTS];
        enum op_kind k = p->rig.op[i].kind;
        uint32_t n = step_parts(&p->rig.op[i], shape, p->distinct[i], p->o->column, part);
        to->seconds[k] += p->begin[i + 1] - p->begin[i];
        to->calls[k] += n > 0;
        for (uint32_t j = 0; j < n; j++) {
            const struct kernel_cost *c = &part[j].cost;
            const char *limit;
            double s = roof_seconds(roof, c, part[j].arithmetic, &limit);
            to->bytes[k] += c->read_bytes + 2 * c->modify_bytes + c->write_bytes;
            to->flops[k] += c->flops;
            to->roof[k] += s;
            if (s > to->largest[k]) {
                to->largest[k] = s;
                to->limit[k] = limit;
            }
        }
    }
}

/* Makes one step and adds it. The roof is that of the sample so far: costs do not depend on it. */
static double make_step(struct profile *p, const struct runner_feed *feed, uint32_t n,
                        const struct step_shape *shape, const struct roof *roof, struct sums *to) {
    p->rows = shape->rows;
    double from = clock_seconds();
    runner_step(p->rig.r, feed, n);
    double seconds = clock_seconds() - from;
    if (to) {
        add_step(p, shape, roof, to);
        to->total += seconds;
    }
    return seconds;
}

static double prompt(struct profile *p, uint32_t sequence, const struct roof *roof,
                     struct sums *to) {
    double seconds = 0;
    runner_reset(p->rig.r, sequence);
    for (uint32_t at = 0; at < p->o->prompt_tokens; at += p->o->rows) {
        uint32_t left = p->o->prompt_tokens - at, n = left < p->o->rows ? left : p->o->rows;
        const struct runner_feed feed = {sequence, p->rig.ids + at, n, false};
        const struct step_shape shape = {.rows = n, .history = at, .decode = n == 1, .logits = 1};
        seconds += make_step(p, &feed, 1, &shape, roof, to);
    }
    return seconds;
}

/* In place of what the watched operations took, one behind the end of the other. */
static void time_on_device(struct profile *p, const struct runner_feed *feed, uint32_t n,
                           struct sums *to) {
    struct device_step d;
    uint32_t kinds = 0;
    for (enum op_kind k = 0; k < OP_COUNT; k++)
        kinds |= (to->calls[k] > 0 && k != OP_SAMPLE) << k;
    if (p->status || (p->status = device_time_step(p->rig.r, feed, n, kinds, &d, p->err)))
        return;
    memcpy(to->seconds, d.kind, sizeof d.kind);
    to->total = d.seconds;
}

static void decode(struct profile *p, const struct roof *roof, struct sums *to) {
    uint32_t n = p->o->sequences;
    struct runner_feed *feed = calloc(n, sizeof *feed);
    WEIR_ASSERT(feed);
    const struct step_shape shape = {
        .rows = n, .history = runner_length(p->rig.r, 0), .decode = true, .logits = n};
    for (uint32_t i = 0; i < n; i++)
        feed[i] = (struct runner_feed){i, &p->rig.ids[i % p->o->prompt_tokens], 1, false};
    make_step(p, feed, n, &shape, roof, to);
    if (p->o->device && to)
        time_on_device(p, feed, n, to);
    free(feed);
}

/* ---------------------------------------------------------------------------------- statistics */

/* Median over samples of a member of the sums, in thousandths. */
static double median_ms(const struct profile *p, uint32_t n, size_t offset) {
    double x[STEP_SAMPLES];
    for (uint32_t i = 0; i < n; i++)
        memcpy(&x[i], (const char *)&p->sample[i] + offset, sizeof x[i]);
    return 1e3 * quantile(x, n, 0.5);
}

static double of(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static void sum_rows(const struct profile *p, struct step_phase *f) {
    const struct sums *one = &p->sample[f->samples - 1]; /* costs are those of every sample ... */
    for (enum op_kind k = 0; k < OP_COUNT; k++) {
        if (!one->calls[k])
            continue;
        struct step_row *r = &f->row[f->n++];
        *r = (struct step_row){.kind = k, .calls = one->calls[k]};
        r->ms = median_ms(p, f->samples, offsetof(struct sums, seconds) + k * sizeof(double));
        r->roof_ms = median_ms(p, f->samples, offsetof(struct sums, roof) + k * sizeof(double));
        /* ... but for the experts that were chosen */
        r->bytes =
            1e-3 * median_ms(p, f->samples, offsetof(struct sums, bytes) + k * sizeof(double));
        r->flops =
            1e-3 * median_ms(p, f->samples, offsetof(struct sums, flops) + k * sizeof(double));
        r->limit = one->limit[k] ? one->limit[k] : "";
        r->share = of(r->ms, f->ms);
        r->of_roof = of(r->roof_ms, r->ms);
        f->bytes += r->bytes;
        f->flops += r->flops;
        f->roof_ms += r->roof_ms;
        f->between_ms -= r->ms;
        if (!step_in_table(k) && r->share > f->outside_share) {
            f->outside = k;
            f->outside_share = r->share;
        }
    }
}

static void sum_phase(const struct profile *p, const struct roof *roof, uint32_t samples,
                      uint32_t tokens, struct step_phase *f) {
    enum arithmetic a = p->o->column->arithmetic[p->o->column->activation];
    double peak = roof->peak[roof_has(a) ? a : ARITHMETIC_F32];
    *f = (struct step_phase){.samples = samples, .tokens = tokens};
    for (uint32_t i = 0; i < samples; i++)
        f->sample_ms[i] = 1e3 * p->sample[i].total;
    f->ms = f->between_ms = quantile(f->sample_ms, samples, 0.5);
    f->ms_per_token = f->ms / tokens;
    f->spread =
        of(quantile(f->sample_ms, samples, 0.75) - quantile(f->sample_ms, samples, 0.25), f->ms);
    sum_rows(p, f);
    f->memory_ms = roof->read > 0 ? f->bytes / roof->read * 1e-6 : 0;
    f->of_memory = of(f->memory_ms, f->ms);
    f->of_roof = of(f->roof_ms, f->ms);
    f->of_peak = peak > 0 ? f->flops / (f->ms * 1e-3) / (peak * 1e9) : 0;
}

/* Medians of the roofs that were taken. */
static struct roof middle(const struct roof *roof, uint32_t n) {
    struct roof out;
    double *to = (double *)&out, x[STEP_SAMPLES];
    for (size_t i = 0; i < sizeof out / sizeof *to; i++) {
        for (uint32_t k = 0; k < n; k++)
            memcpy(&x[k], (const char *)&roof[k] + i * sizeof *to, sizeof *x);
        to[i] = quantile(x, n, 0.5);
    }
    return out;
}

/* ------------------------------------------------------------------------------------- the run */

enum { ROOF_WANTED = ROOF_ALL };

static void sample(struct profile *p, uint32_t i, bool decodes) {
    if (p->o->wait_seconds > 0)
        idle_wait(p->o->wait_seconds);
    p->sample[i] = (struct sums){0};
    if (!p->o->device)
        roof_take(p->meter, ROOF_WANTED, &p->roof[i]);
    else if (!p->status)
        p->status = device_roof(p->o->device, p->o->roof_bytes, &p->roof[i], p->err);
    if (p->status)
        return;
    program_set_watch(p->rig.program, watch, p);
    if (decodes)
        decode(p, &p->roof[i], &p->sample[i]);
    else
        prompt(p, 0, &p->roof[i], &p->sample[i]);
    if (p->o->device) {
        program_set_watch(p->rig.program, NULL, NULL);
        if (!decodes)
            p->sample[i].total = prompt(p, 0, NULL, NULL);
        if (!p->status)
            p->status = runner_failure(p->rig.r, p->err);
    }
    if (p->o->done)
        p->o->done(p->o->arg, ++p->done, p->of);
}

static void measure(struct profile *p, struct step_report *out) {
    const struct step_options *o = p->o;
    for (uint32_t s = 0; s < o->sequences && (!o->history || s == 0); s++)
        prompt(p, s, NULL, NULL); /* brings in what is mapped, too */
    if (o->history && !p->status)
        p->status = runner_invent(p->rig.r, o->history, p->err);
    decode(p, NULL, NULL);
    for (uint32_t i = 0; i < o->decode_tokens; i++) {
        /* Timings of graphs leave states that no model has. */
        if (o->device && o->history && !p->status)
            p->status = runner_invent(p->rig.r, o->history, p->err);
        for (uint32_t k = 0; k < o->sequences && o->device && !o->history; k++)
            prompt(p, k, NULL, NULL);
        sample(p, i, true);
    }
    if (o->decode_tokens) {
        out->roof = middle(p->roof, o->decode_tokens);
        sum_phase(p, &out->roof, o->decode_tokens, o->sequences, &out->decode);
    }
    for (uint32_t i = 0; i < o->prompts; i++)
        sample(p, i, false);
    if (o->prompts) {
        struct roof roof = middle(p->roof, o->prompts);
        sum_phase(p, &roof, o->prompts, o->prompt_tokens, &out->prefill);
        out->roof = o->decode_tokens ? out->roof : roof;
    }
}

static weir_status open_model(struct profile *p, weir_error *err) {
    const struct step_options *o = p->o;
    const uint32_t before = o->history > o->prompt_tokens ? o->history : o->prompt_tokens;
    const struct step_rig_options rig = {
        .of = {o->model, o->column, o->dense, o->kv_dtype, o->threads,
               o->device ? gpu_device_facts(o->device)->name : NULL},
        .tuning = o->tuning,
        .sequences = o->sequences,
        .positions = before + o->decode_tokens + 2, /* one to begin with, one that is timed only */
        .rows = o->rows,
        .prompt_tokens = o->prompt_tokens,
        .device = o->device};
    return step_rig_open(&rig, &p->rig, err);
}

static weir_status take_memory(struct profile *p, weir_error *err) {
    const struct step_options *o = p->o;
    p->begin = calloc(p->rig.n_ops + 1, sizeof *p->begin);
    p->distinct = calloc(p->rig.n_ops, sizeof *p->distinct);
    p->seen = calloc(p->rig.m.experts + 1, 1);
    p->sample = calloc(STEP_SAMPLES, sizeof *p->sample);
    p->roof = calloc(STEP_SAMPLES, sizeof *p->roof);
    p->err = err;
    if (!o->device)
        p->team = team_open(o->threads);
    if (!p->begin || !p->distinct || !p->seen || !p->sample || !p->roof || (!p->team && !o->device))
        return weir_fail(err, WEIR_NO_MEMORY, "bench step", "no memory or threads");
    if (o->device)
        return WEIR_OK;
    size_t bytes = 8 * (size_t)machine_last_cache_bytes();
    return roof_open(p->team,
                     o->roof_bytes       ? o->roof_bytes
                     : bytes < 300000000 ? 300000000
                                         : bytes,
                     &p->meter, err);
}

weir_status step_measure(const struct step_options *o, struct step_report *out, weir_error *err) {
    struct profile p = {.o = o, .of = o->decode_tokens + o->prompts};
    WEIR_ASSERT(o->decode_tokens <= STEP_SAMPLES && o->prompts <= STEP_SAMPLES && o->sequences &&
                o->prompt_tokens && o->rows);
    *out = (struct step_report){.column = o->column->name,
                                .arithmetic = o->column->arithmetic[o->column->activation],
                                .threads = o->threads};
    snprintf(out->model, sizeof out->model, "%s", o->model);
    weir_status s = open_model(&p, err);
    if (!s)
        s = take_memory(&p, err);
    if (!s) {
        struct idle_mark from = idle_mark();
        out->ops = p.rig.n_ops;
        measure(&p, out);
        s = p.status;
        struct idle_mark to = idle_mark();
        out->idle = idle_between(&from, &to);
        out->quiet = idle_is_quiet(&out->idle);
    }
    roof_close(p.meter);
    if (p.team)
        team_close(p.team);
    free(p.roof);
    free(p.sample);
    free(p.seen);
    free(p.distinct);
    free(p.begin);
    step_rig_close(&p.rig);
    return s;
}

/* ---------------------------------------------------------------------------------------- JSON */

static json_t *row_json(const struct step_row *r) {
    return json_pack("{s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:s,s:b}", "name", op_name(r->kind), "calls",
                     (json_int_t)r->calls, "ms", r->ms, "share", r->share, "bytes", r->bytes,
                     "flops", r->flops, "roof_ms", r->roof_ms, "share_of_roof", r->of_roof, "limit",
                     r->limit, "in_table", (int)step_in_table(r->kind));
}

static json_t *phase_json(const struct step_phase *f) {
    if (!f->samples)
        return json_null();
    json_t *rows = json_array(), *samples = json_array();
    for (uint32_t i = 0; i < f->n; i++)
        json_array_append_new(rows, row_json(&f->row[i]));
    for (uint32_t i = 0; i < f->samples; i++)
        json_array_append_new(samples, json_real(f->sample_ms[i]));
    return json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o}", "tokens",
                     (json_int_t)f->tokens, "ms", f->ms, "ms_per_token", f->ms_per_token,
                     "between_ms", f->between_ms, "spread", f->spread, "bytes", f->bytes, "flops",
                     f->flops, "memory_ms", f->memory_ms, "share_of_memory_roof", f->of_memory,
                     "roof_ms", f->roof_ms, "share_of_roof", f->of_roof, "share_of_peak",
                     f->of_peak, "outside_share", f->outside_share, "operations", rows,
                     "samples_ms", samples);
}

json_t *step_json(const struct step_report *r) {
    const struct roof *f = &r->roof;
    const double peak = f->peak[roof_has(r->arithmetic) ? r->arithmetic : ARITHMETIC_F32];
    json_t *roof =
        json_pack("{s:f,s:f,s:f,s:f,s:f}", "read_gbps", f->read, "modify_gbps", f->modify,
                  "copy_gbps", f->copy, "cache_gbps", f->cache, "peak_gflops", peak);
    return json_pack("{s:o,s:s,s:s,s:s,s:I,s:o,s:o,s:o,s:b}", "machine", machine_json(r->threads),
                     "model", r->model, "column", r->column, "arithmetic",
                     arithmetic_name(r->arithmetic), "operations", (json_int_t)r->ops, "roof", roof,
                     "decode", phase_json(&r->decode), "prefill", phase_json(&r->prefill), "quiet",
                     (int)r->quiet);
}
