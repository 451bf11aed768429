/* tune.c: see tune.h. Called by the command and by tests.
 * One step times a variant of every group of operations at once, since each operation has its own
 * time; so a round is as many steps as the largest number of variants of a group, and one.
 * Invariant that bites: rounds begin with another variant each, or what comes behind the same
 * neighbour would always find the same caches. */
#include "bench/tune_inside.h"

#include "base/clock.h"
#include "bench/kernels_machine.h"
#include "bench/quantile.h"

#include <stdlib.h>
#include <string.h>

static const struct variant usual = {"default", 0, true};

/* ---------------------------------------------------------------------------------------- groups
 */

/* The group of an operation, perhaps a new one, or UINT32_MAX. */
static uint32_t find_group(struct tuner *t, const struct op *op) {
    struct variant v[OP_VARIANTS];
    char shape[OP_SIGNATURE];
    uint32_t any = 0, k = 0;
    for (enum row_class c = 0; c < ROW_CLASSES; c++)
        any += column_variants(t->o->of.column, op, c, v);
    if (!any)
        return UINT32_MAX;
    op_signature(op, shape);
    while (k < t->n_groups &&
           (t->group[k].op->kind != op->kind || strcmp(t->group[k].shape, shape) != 0))
        k++;
    if (k == t->n_groups) {
        t->group[k] = (struct group){.op = op};
        memcpy(t->group[k].shape, shape, sizeof shape);
        t->n_groups++;
    }
    t->group[k].calls++;
    return k;
}

/* ----------------------------------------------------------------------------------------- steps
 */

static void watch(void *arg, uint32_t i) {
    struct tuner *t = arg;
    t->begin[i] = (double)clock_ns() * 1e-3;
}

/* All groups go by way k, those that have fewer by default. */
static void all_go(struct tuner *t, uint32_t k) {
    for (uint32_t i = 0; i < t->n_groups; i++) {
        t->group[i].counts = k < t->group[i].ways;
        t->group[i].way = t->group[i].counts ? k : 0;
    }
}
static void all_go_best(struct tuner *t) {
    for (uint32_t i = 0; i < t->n_groups; i++) {
        t->group[i].counts = t->group[i].best > 0;
        t->group[i].way = t->group[i].best;
    }
}

weir_status tune_choose(struct tuner *t, weir_error *err) {
    for (uint32_t i = 0; i < t->rig.n_ops; i++) {
        const struct group *g = t->group_of[i] == UINT32_MAX ? NULL : &t->group[t->group_of[i]];
        if (!g || !g->ways)
            continue;
        uint8_t number = g->variant[g->way].number;
        weir_status s = program_choose(t->rig.program, i, g->rows, number, err);
        if (s)
            return s;
    }
    return WEIR_OK;
}

/* Sample `round` of every group that counts. */
static void count(struct tuner *t, uint32_t round) {
    for (uint32_t i = 0; i < t->n_groups; i++)
        if (t->group[i].counts)
            t->group[i].us[t->group[i].way][round] = 0;
    for (uint32_t i = 0; i < t->rig.n_ops; i++) {
        struct group *g = t->group_of[i] == UINT32_MAX ? NULL : &t->group[t->group_of[i]];
        if (g && g->counts)
            g->us[g->way][round] += t->begin[i + 1] - t->begin[i];
    }
}

/* One step of the phase, the groups going as they are set. Steps of one round have the same tokens.
 */
static weir_status step(struct tuner *t, uint32_t round, double *ms, weir_error *err) {
    uint32_t n = t->decode ? t->rows : 1;
    weir_status s = tune_choose(t, err);
    if (s)
        return s;
    if (!t->decode)
        runner_reset(t->rig.r, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = t->decode ? (round * t->rows + i) % t->o->prompt_tokens : 0;
        t->feed[i] = (struct runner_feed){i, t->rig.ids + at, t->decode ? 1 : t->rows, false};
    }
    double from = clock_seconds();
    runner_step(t->rig.r, t->feed, n);
    *ms = 1e3 * (clock_seconds() - from);
    count(t, round);
    return WEIR_OK;
}

/* ---------------------------------------------------------------------------------------- phases
 */

/* What is left to be tuned in this phase; the most ways of a group, 0: nothing. */
static uint32_t enter(struct tuner *t) {
    const struct batch b = {.n_rows = t->rows,
                            .n_decode = t->decode ? t->rows : 0,
                            .n_logits = t->decode ? t->rows : 1};
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->n_groups; i++) {
        struct group *g = &t->group[i];
        uint32_t rows = op_rows(g->op, &b), n = 0;
        g->ways = g->best = 0;
        if (!rows)
            continue;
        g->rows = row_class_of(rows);
        if (!g->done[g->rows])
            n = column_variants(t->o->of.column, g->op, g->rows, g->variant + 1);
        if (!n)
            continue;
        g->variant[0] = usual;
        g->ways = n + 1;
        most = g->ways > most ? g->ways : most;
    }
    return most;
}

static double median(const struct tuner *t, const struct group *g, uint32_t way) {
    return quantile(g->us[way], t->o->rounds, 0.5);
}

/* Beyond the noise of both. */
static bool is_faster(const struct tuner *t, const struct group *g, uint32_t way) {
    return median(t, g, way) < (1 - TUNE_LEAST_GAIN) * median(t, g, 0) &&
           quantile(g->us[way], t->o->rounds, 0.75) < quantile(g->us[0], t->o->rounds, 0.25);
}

/* A row for each group of the phase, with the fastest way; g->best is 0 unless it is faster. */
static bool judge(struct tuner *t) {
    bool any = false;
    for (uint32_t i = 0; i < t->n_groups; i++) {
        struct group *g = &t->group[i];
        uint32_t best = 0;
        for (uint32_t k = 1; k < g->ways; k++)
            best = median(t, g, k) < median(t, g, best) ? k : best;
        g->best = best && is_faster(t, g, best) ? best : 0;
        any |= g->best > 0;
        if (!g->ways)
            continue;
        g->done[g->rows] = true;
        struct tune_row *r = &t->out->row[t->out->n++];
        *r = (struct tune_row){.kind = g->op->kind,
                               .rows = g->rows,
                               .calls = g->calls,
                               .tried = g->ways - 1,
                               .default_us = median(t, g, 0),
                               .best_us = median(t, g, best),
                               .best = g->variant[best].name};
        memcpy(r->shape, g->shape, sizeof r->shape);
    }
    return any;
}

/* What won once and wins again goes into the table. `row`: of the first group of the phase. */
static weir_status keep(struct tuner *t, struct tune_row *row, weir_error *err) {
    for (uint32_t i = 0; i < t->n_groups; i++) {
        struct group *g = &t->group[i];
        struct tune_row *r = row;
        row += g->ways > 0;
        if (!g->best)
            continue;
        r->default_us = median(t, g, 0);
        r->best_us = median(t, g, g->best);
        if (!is_faster(t, g, g->best))
            continue;
        r->variant = r->best;
        struct tuning_row out = {
            .kind = r->kind, .rows = r->rows, .us = r->best_us, .default_us = r->default_us};
        snprintf(out.column, sizeof out.column, "%s", t->o->of.column->name);
        snprintf(out.variant, sizeof out.variant, "%s", r->variant);
        memcpy(out.shape, r->shape, sizeof out.shape);
        if (!tuning_add(t->out->table, &out))
            return weir_fail(err, WEIR_NO_MEMORY, "tune", "no memory for the table");
    }
    return WEIR_OK;
}

void tune_next_round(struct tuner *t) {
    if (t->o->done)
        t->o->done(t->o->arg, t->done, t->of);
    t->done++;
    if (t->o->wait_seconds > 0)
        idle_wait(t->o->wait_seconds);
}

/* All ways in turn. */
static weir_status try_all(struct tuner *t, uint32_t ways, double *ms, weir_error *err) {
    weir_status s = WEIR_OK;
    if (t->o->device)
        return tune_device_all(t, ms, err);
    for (uint32_t round = 0; round < t->o->rounds && !s; round++) {
        tune_next_round(t);
        for (uint32_t i = 0; i < ways && !s; i++) {
            double took;
            uint32_t k = (i + round) % ways;
            all_go(t, k);
            s = step(t, round, &took, err);
            ms[round] = k == 0 ? took : ms[round];
        }
    }
    return s;
}

/* Winners beside the default. */
static weir_status try_best(struct tuner *t, double ms[2][TUNE_ROUNDS], weir_error *err) {
    weir_status s = WEIR_OK;
    if (t->o->device)
        return tune_device_best(t, ms, err);
    for (uint32_t round = 0; round < t->o->rounds && !s; round++) {
        tune_next_round(t);
        for (uint32_t i = 0; i < 2 && !s; i++) {
            uint32_t best = (i + round) % 2;
            if (best)
                all_go_best(t);
            else
                all_go(t, 0);
            s = step(t, round, &ms[best][round], err);
        }
    }
    return s;
}

static void fill_histories(struct tuner *t) {
    for (uint32_t i = 0; i < t->rows; i++) {
        runner_reset(t->rig.r, i);
        runner_prefill(t->rig.r, i, t->rig.ids, t->o->prompt_tokens, t->o->rows);
    }
}

static weir_status phase(struct tuner *t, bool decode, uint32_t rows, weir_error *err) {
    double ms[2][TUNE_ROUNDS], first;
    t->decode = decode;
    t->rows = rows;
    uint32_t ways = enter(t), row0 = t->out->n;
    if (!ways) {
        t->done += 2 * t->o->rounds;
        return WEIR_OK;
    }
    if (decode)
        fill_histories(t);
    all_go(t, 0);
    weir_status s = step(t, 0, &first, err); /* brings in what has not been touched */
    if (!s)
        s = try_all(t, ways, ms[0], err);
    bool any = !s && judge(t);
    if (any)
        s = try_best(t, ms, err);
    else
        t->done += t->o->rounds;
    if (any && !s)
        s = keep(t, &t->out->row[row0], err);
    struct tune_steps *steps = &t->out->steps[t->out->n_steps++];
    *steps = (struct tune_steps){.decode = decode, .rows = rows};
    steps->default_ms = s ? 0 : quantile(ms[0], t->o->rounds, 0.5);
    steps->tuned_ms = s ? 0 : quantile(ms[any], t->o->rounds, 0.5);
    all_go(t, 0); /* what comes next is tuned by itself */
    return s ? s : tune_choose(t, err);
}

/* Decode steps of every class of sequences, then prompts of every class of rows: products that
 * decode steps have settled are left out there. */
static weir_status phases(struct tuner *t, weir_error *err) {
    static const uint32_t most[ROW_CLASSES] = {1, 2, 4, 8, 16, 64, UINT32_MAX};
    weir_status s = WEIR_OK;
    t->of = 2 * (2 * ROW_CLASSES - 1) * t->o->rounds; /* a prompt of one row is none */
    for (int decode = 1; decode >= 0 && !s; decode--)
        for (enum row_class c = decode ? ROWS_1 : ROWS_2; c < ROW_CLASSES && !s; c++) {
            uint32_t limit = decode ? t->o->sequences : t->o->rows;
            uint32_t rows = most[c] < limit ? most[c] : limit;
            if (row_class_of(rows) == c)
                s = phase(t, decode, rows, err);
            else
                t->done += 2 * t->o->rounds;
        }
    weir_status failed = s ? s : runner_failure(t->rig.r, err);
    return failed;
}

/* ------------------------------------------------------------------------------------- the run */

static weir_status open_rig(struct tuner *t, weir_error *err) {
    const struct tune_options *o = t->o;
    uint32_t tokens = o->prompt_tokens > o->rows ? o->prompt_tokens : o->rows;
    const struct step_rig_options rig = {.of = o->of,
                                         .sequences = o->sequences,
                                         .positions = tokens + o->rounds * (WAYS + 2) + 1,
                                         .rows = o->rows,
                                         .prompt_tokens = tokens,
                                         .device = o->device};
    weir_status s = step_rig_open(&rig, &t->rig, err);
    if (s)
        return s;
    uint32_t n = t->rig.n_ops;
    t->group = calloc(n, sizeof *t->group);
    t->group_of = calloc(n, sizeof *t->group_of);
    t->begin = calloc(n + 1, sizeof *t->begin);
    t->feed = calloc(o->sequences, sizeof *t->feed);
    t->out->table = tuning_new(o->of.threads, o->of.device);
    if (!t->group || !t->group_of || !t->begin || !t->feed || !t->out->table)
        return weir_fail(err, WEIR_NO_MEMORY, "tune", "no memory");
    for (uint32_t i = 0; i < n; i++)
        t->group_of[i] = find_group(t, &t->rig.op[i]);
    t->out->row = calloc(t->n_groups * ROW_CLASSES + 1, sizeof *t->out->row);
    if (!t->out->row)
        return weir_fail(err, WEIR_NO_MEMORY, "tune", "no memory");
    program_set_watch(t->rig.program, watch, t);
    return WEIR_OK;
}

weir_status tune_measure(const struct tune_options *o, struct tune_report *out, weir_error *err) {
    struct tuner t = {.o = o, .out = out};
    WEIR_ASSERT(o->prompt_tokens && o->sequences && o->rows && o->rounds &&
                o->rounds <= TUNE_ROUNDS);
    *out = (struct tune_report){0};
    weir_status s = open_rig(&t, err);
    if (!s) {
        struct idle_mark from = idle_mark();
        s = phases(&t, err);
        struct idle_mark to = idle_mark();
        out->idle = idle_between(&from, &to);
        out->quiet = idle_is_quiet(&out->idle);
    }
    free(t.feed);
    free(t.begin);
    free(t.group_of);
    free(t.group);
    step_rig_close(&t.rig);
    return s;
}

void tune_free(struct tune_report *r) {
    free(r->row);
    tuning_free(r->table);
}

/* ------------------------------------------------------------------------------------------ JSON
 */

static json_t *text_or_null(const char *s) {
    return s ? json_string(s) : json_null();
}

json_t *tune_json(const struct tune_options *o, const struct tune_report *r, const char *path) {
    json_t *rows = json_array(), *steps = json_array();
    for (uint32_t i = 0; i < r->n; i++) {
        const struct tune_row *row = &r->row[i];
        json_array_append_new(rows,
                              json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:s,s:o}", "operation",
                                        op_name(row->kind), "shape", row->shape, "rows",
                                        row_class_name(row->rows), "calls", (json_int_t)row->calls,
                                        "tried", (json_int_t)row->tried, "default_us",
                                        row->default_us, "best_us", row->best_us, "best", row->best,
                                        "variant", text_or_null(row->variant)));
    }
    for (uint32_t i = 0; i < r->n_steps; i++)
        json_array_append_new(steps,
                              json_pack("{s:b,s:I,s:f,s:f}", "decode", (int)r->steps[i].decode,
                                        "rows", (json_int_t)r->steps[i].rows, "default_ms",
                                        r->steps[i].default_ms, "tuned_ms", r->steps[i].tuned_ms));
    return json_pack("{s:o,s:s,s:s,s:o,s:o,s:o,s:b}", "machine", machine_json(o->of.threads),
                     "model", o->of.model, "column", o->of.column->name, "rows", rows, "steps",
                     steps, "file", text_or_null(path), "quiet", (int)r->quiet);
}
