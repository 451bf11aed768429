/* score.c: the comparisons of `weir score`.
 *
 * Exact column: against the files. Logits within max(1e-4, 8 times the case's float32 noise);
 * log probabilities within twice that (a softmax may double an error); activations and states
 * within it times the largest magnitude of the array; the same experts in the same order; the same
 * greedy ids. Fast column: against the exact one, run beside it over prompt and continuation, since
 * the files hold the logits of all positions for a part of the cases only; the exact one is itself
 * held to its bound first. Root mean square error, mean KL, share of equal top-1 ids; greedy ids by
 * the gap rule. Bounds: docs/testing.md.
 *
 * Called by cmd_score.c. Invariant that bites: states are compared straight behind the prompt,
 * before the first greedy token moves them. */
#include "cli/score.h"

#include "base/plural.h"

#include <math.h>
#include <string.h>

enum { GAP_RMS = 4 };
static const double RMS_BOUND = 0.2, KL_BOUND = 1.5e-3, TOP1_SHARE = 0.97;

struct named_values {
    const char *name;
    struct vector_array ref;
    double error, largest;
    size_t rows;
};

struct routing {
    uint32_t layer;
    const json_t *ids, *weights;
    size_t rows, wrong;
    double error;
};

/* One case while it runs. */
struct work_case {
    const struct score_settings *s;
    const struct vectors *v;
    const json_t *json;
    struct score_case *out;
    int32_t *ids, *greedy; /* ids: prompt, then greedy */
    size_t n, n_greedy;
    double bound;
    struct vector_array logits, logits_last, top_ids, top_logprobs, gen_top_ids, gen_top_logprobs;
    struct named_values *act;
    size_t n_act;
    struct routing *route;
    size_t n_route;
    size_t row0; /* first row of the step in progress */
    struct runner *runner;
};

static weir_status add_check(struct score_case *c, const char *what, double error, double bound,
                             weir_error *err) {
    struct score_check *grown = realloc(c->check, (c->n_checks + 1) * sizeof *grown);
    if (!grown)
        return weir_fail(err, WEIR_NO_MEMORY, c->name, "no memory");
    c->check = grown;
    struct score_check *k = &grown[c->n_checks++];
    *k = (struct score_check){.error = error, .bound = bound, .ok = error <= bound};
    snprintf(k->what, sizeof k->what, "%s", what);
    c->ok = c->ok && k->ok;
    return WEIR_OK;
}

/* How far two numbers are apart. A NaN is infinitely far from everything: carried on as NaN it
 * would get lost in the next comparison, and a broken model would pass. */
static double distance(double a, double b) {
    double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

/* The largest of `most` and the distances of two rows. */
static double worst(double most, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        most = fmax(most, distance(a[i], b[i]));
    return most;
}

static int32_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

/* log sum exp of a row */
static double log_total(const float *x, size_t n) {
    double top = x[argmax(x, n)], sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* ------------------------------------------------------------------------------------------------
 * what flows between layers */

static void compare_activation(struct work_case *w, struct named_values *a, struct tensor t,
                               uint32_t rows) {
    if (t.cols != a->ref.cols || w->row0 + rows > a->ref.rows) {
        a->error = INFINITY;
        return;
    }
    for (uint32_t r = 0; r < rows; r++) {
        const float *ref = vector_floats(&a->ref, w->row0 + r);
        a->error = worst(a->error, tensor_row(t, r), ref, t.cols);
        for (uint32_t i = 0; i < t.cols; i++)
            a->largest = fmax(a->largest, fabsf(ref[i]));
    }
    a->rows += rows;
}

static const struct op_route *find_route(struct runner *r, uint32_t layer) {
    uint32_t n;
    const struct op *op = program_ops(runner_program(r), &n);
    for (uint32_t i = 0; i < n; i++)
        if (op[i].kind == OP_ROUTE && op[i].layer == (int32_t)layer)
            return &op[i].u.route;
    return NULL;
}

static void compare_routing(struct work_case *w, struct routing *r, uint32_t rows) {
    const struct op_route *route = find_route(w->runner, r->layer);
    if (!route)
        return;
    for (uint32_t i = 0; i < rows; i++) {
        const json_t *ids = json_array_get(r->ids, w->row0 + i);
        const json_t *weights = json_array_get(r->weights, w->row0 + i);
        bool same = json_array_size(ids) == route->top_k;
        for (uint32_t k = 0; same && k < route->top_k; k++) {
            size_t at = (size_t)i * route->top_k + k;
            same = json_integer_value(json_array_get(ids, k)) == route->ids[at];
            if (same)
                r->error = fmax(r->error, distance(json_number_value(json_array_get(weights, k)),
                                                   route->weights[at]));
        }
        r->wrong += !same;
    }
    r->rows += rows;
}

/* The router's buffers are reused by the next sublayer: they are read while the layer's own output
 * is shown. */
static void tap(void *arg, const char *name, struct tensor t, uint32_t rows) {
    struct work_case *w = arg;
    for (size_t i = 0; i < w->n_act; i++)
        if (!strcmp(w->act[i].name, name))
            compare_activation(w, &w->act[i], t, rows);
    unsigned layer;
    int end = 0;
    if (sscanf(name, "layer%u.ffn_out%n", &layer, &end) == 1 && end && !name[end])
        for (size_t i = 0; i < w->n_route; i++)
            if (w->route[i].layer == layer)
                compare_routing(w, &w->route[i], rows);
}

static weir_status open_flow(struct work_case *w, weir_error *err) {
    json_t *list = json_object_get(w->json, "activations"), *entry;
    const char *name;
    w->act = calloc(json_object_size(list) + 1, sizeof *w->act);
    json_t *routers = json_object_get(w->json, "router");
    w->route = calloc(json_object_size(routers) + 1, sizeof *w->route);
    if (!w->act || !w->route)
        return weir_fail(err, WEIR_NO_MEMORY, w->out->name, "no memory");
    json_object_foreach(list, name, entry) {
        struct named_values *a = &w->act[w->n_act++];
        a->name = name;
        weir_status status = vectors_array(w->v, list, name, 'f', &a->ref, err);
        if (status)
            return status;
    }
    json_object_foreach(routers, name, entry) {
        struct routing *r = &w->route[w->n_route];
        if (sscanf(name, "model.layers.%u.", &r->layer) != 1)
            return weir_fail(err, WEIR_BAD_FILE, w->v->path, "router '%s': not model.layers.N.*",
                             name);
        r->ids = json_object_get(entry, "ids");
        r->weights = json_object_get(entry, "weights");
        w->n_route++;
    }
    return WEIR_OK;
}

/* "layer3.attn_in" and its like are summed up by kind: one line says "attn_in" with the worst
 * layer.
 */
static weir_status report_flow(struct work_case *w, weir_error *err) {
    weir_status status = WEIR_OK;
    for (size_t i = 0; i < w->n_act && !status; i++) {
        const char *dot = strchr(w->act[i].name, '.');
        const char *kind = dot ? dot + 1 : w->act[i].name;
        const struct named_values *worst_one = NULL;
        double worst_share = -1;
        bool first = true, shown = true;
        for (size_t j = 0; j < w->n_act; j++) {
            const struct named_values *a = &w->act[j];
            const char *other = strchr(a->name, '.');
            if (strcmp(other ? other + 1 : a->name, kind))
                continue;
            first = first && j >= i;
            shown = shown && a->rows == a->ref.rows;
            double share = a->error / fmax(1, a->largest);
            if (share > worst_share) {
                worst_share = share;
                worst_one = a;
            }
        }
        if (!first)
            continue;
        char what[64];
        snprintf(what, sizeof what, "%s%s%s", kind, dot ? ", worst: " : "",
                 dot ? worst_one->name : "");
        if (dot)
            what[strcspn(what, ".")] = 0;
        status = add_check(w->out, what, shown ? worst_one->error : INFINITY,
                           w->bound * fmax(1, worst_one->largest), err);
    }
    size_t wrong = 0, rows = 0;
    double error = 0;
    bool complete = true;
    for (size_t i = 0; i < w->n_route; i++) {
        wrong += w->route[i].wrong;
        rows += w->route[i].rows;
        error = fmax(error, w->route[i].error);
        complete = complete && w->route[i].rows == json_array_size(w->route[i].ids);
    }
    if (w->n_route && !status)
        status = add_check(w->out, "choices of experts that differ",
                           complete && rows ? (double)wrong : INFINITY, 0, err);
    if (w->n_route && !status)
        status = add_check(w->out, "weights of experts", error, w->bound, err);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * states */

static weir_status compare_array(struct work_case *w, const json_t *entry, const char *key,
                                 const float *mine, size_t n, double *error, double *bound,
                                 weir_error *err) {
    struct vector_array ref;
    weir_status status = vectors_array(w->v, entry, key, 'f', &ref, err);
    if (status || !ref.map.data)
        return status;
    if (ref.rows * ref.cols != n)
        status = weir_fail(err, WEIR_BAD_FILE, w->v->path,
                           "case %s: state %s has %zu %s, the model's %zu", w->out->name, key,
                           ref.rows * ref.cols, plural(ref.rows * ref.cols, "value", "values"), n);
    if (!status) {
        const float *data = vector_floats(&ref, 0);
        double largest = 0;
        for (size_t i = 0; i < n; i++)
            largest = fmax(largest, fabsf(data[i]));
        double e = worst(0, mine, data, n), b = w->bound * fmax(1, largest);
        if (e / b > *error / *bound) {
            *error = e;
            *bound = b;
        }
    }
    vectors_array_close(&ref);
    return status;
}

static weir_status compare_states(struct work_case *w, weir_error *err) {
    json_t *states = json_object_get(w->json, "kda_state_after_prompt"), *entry;
    if (!states)
        return WEIR_OK;
    const struct model *m = w->s->model;
    size_t width = model_kda_width(m);
    double error[2] = {0, 0}, bound[2] = {w->bound, w->bound};
    const char *name;
    json_object_foreach(states, name, entry) {
        uint32_t layer = (uint32_t)atoi(name);
        if (layer >= m->layers || !m->layer_is_kda[layer])
            return weir_fail(err, WEIR_BAD_FILE, w->v->path,
                             "case %s: layer %s of kda_state_after_prompt is no KDA layer",
                             w->out->name, name);
        uint32_t k = model_kind_index(m, layer);
        weir_status status = compare_array(w, entry, "S", runner_state(w->runner, 0, k),
                                           width * m->kda_dim, &error[0], &bound[0], err);
        if (!status)
            status = compare_array(w, entry, "conv", runner_window(w->runner, 0, k),
                                   3 * (m->conv_taps - 1) * width, &error[1], &bound[1], err);
        if (status)
            return status;
    }
    weir_status status = add_check(w->out, "KDA states after the prompt", error[0], bound[0], err);
    if (!status)
        status = add_check(w->out, "KDA windows after the prompt", error[1], bound[1], err);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * the exact column against the files */

struct tops {
    double logprob; /* largest error */
    size_t wrong;   /* positions whose best id differs although the gap is not within the error */
    double nll;
};

/* One position: its five best ids and their log probabilities. */
static void compare_tops(struct work_case *w, const struct vector_array *ids,
                         const struct vector_array *logprobs, size_t row, const float *logits,
                         struct tops *t) {
    if (!ids->map.data || !logprobs->map.data || row >= ids->rows || row >= logprobs->rows)
        return;
    size_t vocab = w->s->model->vocab;
    const int32_t *id = vector_ints(ids, row);
    const float *lp = vector_floats(logprobs, row);
    double total = log_total(logits, vocab);
    for (size_t k = 0; k < ids->cols && k < logprobs->cols; k++) {
        bool known = id[k] >= 0 && (size_t)id[k] < vocab;
        t->logprob =
            fmax(t->logprob, known ? distance((double)logits[id[k]] - total, lp[k]) : INFINITY);
    }
    bool clear = ids->cols < 2 || (double)lp[0] - lp[1] > 2 * w->bound;
    t->wrong += clear && argmax(logits, vocab) != id[0];
}

static weir_status prompt_exact(struct work_case *w, weir_error *err) {
    size_t vocab = w->s->model->vocab;
    double error = 0;
    struct tops tops = {0};
    size_t compared = 0;
    for (size_t done = 0; done < w->n;) {
        size_t now = w->n - done < w->s->rows ? w->n - done : w->s->rows;
        w->row0 = done;
        runner_step(w->runner, &(struct runner_feed){0, w->ids + done, (uint32_t)now, true}, 1);
        for (size_t i = 0; i < now; i++) {
            size_t row = done + i;
            const float *mine = runner_logits(w->runner, (uint32_t)i);
            const float *ref = NULL;
            if (w->logits.map.data)
                ref = vector_floats(&w->logits, row);
            else if (w->logits_last.map.data && row + 1 == w->n)
                ref = vector_floats(&w->logits_last, 0);
            if (ref) {
                error = worst(error, mine, ref, vocab);
                compared++;
            }
            compare_tops(w, &w->top_ids, &w->top_logprobs, row, mine, &tops);
            if (row + 1 < w->n)
                tops.nll += log_total(mine, vocab) - (double)mine[w->ids[row + 1]];
        }
        done += now;
    }
    weir_status status =
        add_check(w->out, "logits of the prompt", compared ? error : INFINITY, w->bound, err);
    if (!status && w->top_ids.map.data) {
        status = add_check(w->out, "best five log probabilities", tops.logprob, 2 * w->bound, err);
        if (!status)
            status = add_check(w->out, "best ids that differ", (double)tops.wrong, 0, err);
    }
    const json_t *nll = json_object_get(w->json, "prompt_nll_mean");
    if (!status && json_is_number(nll) && w->n > 1)
        status = add_check(w->out, "mean NLL of the prompt",
                           fabs(tops.nll / (double)(w->n - 1) - json_number_value(nll)),
                           2 * w->bound, err);
    return status;
}

/* Continues by argmax. The first row of logits is that of the prompt's last token. */
static weir_status greedy_exact(struct work_case *w, weir_error *err) {
    size_t vocab = w->s->model->vocab, differ = SIZE_MAX;
    uint32_t row = (uint32_t)((w->n - 1) % w->s->rows);
    const json_t *gaps = json_object_get(json_object_get(w->json, "greedy"), "logit_gap");
    struct tops tops = {0};
    const float *logits = runner_logits(w->runner, row);
    for (size_t i = 0; i < w->n_greedy && differ == SIZE_MAX; i++) {
        compare_tops(w, &w->gen_top_ids, &w->gen_top_logprobs, i, logits, &tops);
        int32_t id = argmax(logits, vocab);
        if (id != w->greedy[i]) {
            differ = i;
            break;
        }
        if (i + 1 == w->n_greedy)
            break;
        runner_step(w->runner, &(struct runner_feed){0, &id, 1, false}, 1);
        logits = runner_logits(w->runner, 0);
    }
    /* Where the best two are nearer than twice the error that is allowed, either is right. */
    const json_t *gap = differ == SIZE_MAX ? NULL : json_array_get(gaps, differ);
    bool tie = json_is_number(gap) && json_number_value(gap) <= 2 * w->bound;
    w->out->keeps_gap_rule = differ == SIZE_MAX || tie;
    weir_status status =
        add_check(w->out, "greedy ids that differ",
                  w->out->keeps_gap_rule ? 0 : (double)(w->n_greedy - differ), 0, err);
    if (!status && w->gen_top_ids.map.data)
        status = add_check(w->out, "log probabilities on the way", tops.logprob, 2 * w->bound, err);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * the fast column against the exact one */

/* Logits of every position of prompt and continuation, [n + n_greedy - 1, vocab]. */
static void all_logits(struct runner *r, const int32_t *ids, size_t n, size_t rows, size_t vocab,
                       float *out) {
    for (size_t done = 0; done < n;) {
        size_t now = n - done < rows ? n - done : rows;
        runner_step(r, &(struct runner_feed){0, ids + done, (uint32_t)now, true}, 1);
        for (size_t i = 0; i < now; i++)
            memcpy(out + (done + i) * vocab, runner_logits(r, (uint32_t)i), vocab * sizeof *out);
        done += now;
    }
}

struct distance {
    double square, kl, same;
};

static struct distance compare_rows(const float *mine, const float *ref, size_t rows,
                                    size_t vocab) {
    struct distance d = {0};
    for (size_t r = 0; r < rows; r++) {
        const float *a = mine + r * vocab, *b = ref + r * vocab;
        double la = log_total(a, vocab), lb = log_total(b, vocab), kl = 0;
        for (size_t i = 0; i < vocab; i++) {
            double e = (double)a[i] - b[i], log_p = b[i] - lb;
            d.square += e * e;
            kl += exp(log_p) * (log_p - (a[i] - la));
        }
        d.kl += kl;
        d.same += argmax(a, vocab) == argmax(b, vocab);
    }
    d.square /= (double)(rows * vocab);
    d.kl /= (double)rows;
    d.same /= (double)rows;
    return d;
}

/* The exact column's logits of prompt and continuation, held to their own bound. */
static weir_status reference_logits(struct work_case *w, size_t n, float *out, weir_error *err) {
    const struct score_settings *s = w->s;
    struct runner_options o = {.column = &column_ref,
                               .threads = s->threads,
                               .sequences = 1,
                               .positions = (uint32_t)n + 1,
                               .rows = s->rows,
                               .logits = s->rows,
                               .kv_dtype = DTYPE_F32};
    struct runner *r;
    weir_status status = runner_open(s->model, s->weights, &o, &r, err);
    if (status)
        return status;
    size_t vocab = s->model->vocab;
    all_logits(r, w->ids, n, s->rows, vocab, out);
    status = runner_failure(r, err);
    runner_close(r);
    if (status)
        return status;
    double error = 0;
    for (size_t i = 0; w->logits.map.data && i < w->n; i++)
        error = worst(error, out + i * vocab, vector_floats(&w->logits, i), vocab);
    if (w->logits_last.map.data)
        error = worst(error, out + (w->n - 1) * vocab, vector_floats(&w->logits_last, 0), vocab);
    return add_check(w->out, "logits of the exact column", error, w->bound, err);
}

/* Between the two best logits of a row. */
static double top_gap(const float *logits, size_t vocab) {
    double first = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < vocab; i++) {
        if (logits[i] > first) {
            second = first;
            first = logits[i];
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    return first - second;
}

/* Free greedy continuation: equal up to the first step whose two best are nearer than four times
 * the error. */
static void greedy_fast(struct work_case *w, const float *ref, double rms) {
    size_t vocab = w->s->model->vocab, step = 0;
    const float *logits = runner_prefill(w->runner, 0, w->ids, (uint32_t)w->n, w->s->rows);
    bool same = true;
    for (; step < w->n_greedy; step++) {
        if (top_gap(ref + (w->n - 1 + step) * vocab, vocab) < GAP_RMS * rms)
            break;
        int32_t id = argmax(logits, vocab);
        same = id == w->greedy[step];
        if (!same || step + 1 == w->n_greedy)
            break;
        runner_step(w->runner, &(struct runner_feed){0, &id, 1, false}, 1);
        logits = runner_logits(w->runner, 0);
    }
    w->out->keeps_gap_rule = same;
}

static weir_status run_fast(struct work_case *w, weir_error *err) {
    size_t vocab = w->s->model->vocab, n = w->n + (w->n_greedy ? w->n_greedy - 1 : 0);
    float *ref = malloc(n * vocab * sizeof *ref), *mine = malloc(n * vocab * sizeof *mine);
    weir_status status = ref && mine ? WEIR_OK
                                     : weir_fail(err, WEIR_NO_MEMORY, w->out->name,
                                                 "no memory for two times %zu logits", n * vocab);
    if (!status)
        status = reference_logits(w, n, ref, err);
    if (!status) {
        all_logits(w->runner, w->ids, n, w->s->rows, vocab, mine);
        struct distance d = compare_rows(mine, ref, n, vocab);
        double rms = sqrt(d.square);
        for (size_t i = 0; i + 1 < w->n; i++) {
            const float *a = mine + i * vocab, *b = ref + i * vocab;
            w->out->nll += log_total(a, vocab) - (double)a[w->ids[i + 1]];
            w->out->reference_nll += log_total(b, vocab) - (double)b[w->ids[i + 1]];
        }
        w->out->nll_positions = w->n - 1;
        status = add_check(w->out, "root mean square logit error", rms, RMS_BOUND, err);
        if (!status)
            status = add_check(w->out, "mean KL divergence", d.kl, KL_BOUND, err);
        if (!status)
            status = add_check(w->out, "share of top-1 ids that differ", 1 - d.same, 1 - TOP1_SHARE,
                               err);
        runner_reset(w->runner, 0);
        if (!status)
            greedy_fast(w, ref, rms);
    }
    free(ref);
    free(mine);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * one case */

static weir_status open_arrays(struct work_case *w, weir_error *err) {
    const json_t *greedy = json_object_get(w->json, "greedy");
    const struct {
        const json_t *in;
        const char *key;
        char type;
        struct vector_array *out;
        size_t rows, cols; /* 0: any */
    } want[] = {
        {w->json, "logits", 'f', &w->logits, w->n, w->s->model->vocab},
        {w->json, "logits_last", 'f', &w->logits_last, 0, w->s->model->vocab},
        {w->json, "top5_ids", 'i', &w->top_ids, w->n, 0},
        {w->json, "top5_logprobs", 'f', &w->top_logprobs, w->n, 0},
        {greedy, "top5_ids", 'i', &w->gen_top_ids, w->n_greedy, 0},
        {greedy, "top5_logprobs", 'f', &w->gen_top_logprobs, w->n_greedy, 0},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct vector_array *a = want[i].out;
        weir_status status = vectors_array(w->v, want[i].in, want[i].key, want[i].type, a, err);
        if (status)
            return status;
        if (a->map.data && ((want[i].rows && a->rows != want[i].rows) ||
                            (want[i].cols && a->cols != want[i].cols)))
            return weir_fail(err, WEIR_BAD_FILE, w->v->path, "case %s: %s is [%zu, %zu]",
                             w->out->name, want[i].key, a->rows, a->cols);
    }
    if (!w->logits.map.data && !w->logits_last.map.data)
        return weir_fail(err, WEIR_BAD_FILE, w->v->path,
                         "case %s: has neither logits nor logits_last", w->out->name);
    return WEIR_OK;
}

static weir_status read_case(struct work_case *w, weir_error *err) {
    uint32_t vocab = w->s->model->vocab;
    weir_status status = vectors_ids(w->v, w->json, "ids", vocab, &w->ids, &w->n, err);
    if (!status && w->n == 0)
        status = weir_fail(err, WEIR_BAD_FILE, w->v->path, "case %s: has no ids", w->out->name);
    if (!status)
        status = vectors_ids(w->v, json_object_get(w->json, "greedy"), "ids", vocab, &w->greedy,
                             &w->n_greedy, err);
    if (status)
        return status;
    int32_t *both = realloc(w->ids, (w->n + w->n_greedy) * sizeof *both);
    if (!both)
        return weir_fail(err, WEIR_NO_MEMORY, w->out->name, "no memory");
    w->ids = both;
    memcpy(both + w->n, w->greedy, w->n_greedy * sizeof *both);
    const json_t *noise = json_object_get(w->json, "noise_float32");
    if (!json_is_number(noise))
        return weir_fail(err, WEIR_BAD_FILE, w->v->path, "case %s: has no noise_float32",
                         w->out->name);
    w->bound = fmax(1e-4, 8 * json_number_value(noise));
    w->out->n_prompt = w->n;
    w->out->n_greedy = w->n_greedy;
    return open_arrays(w, err);
}

static void close_case(struct work_case *w) {
    runner_close(w->runner);
    for (size_t i = 0; i < w->n_act; i++)
        vectors_array_close(&w->act[i].ref);
    struct vector_array *all[] = {&w->logits,       &w->logits_last, &w->top_ids,
                                  &w->top_logprobs, &w->gen_top_ids, &w->gen_top_logprobs};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        vectors_array_close(all[i]);
    free(w->act);
    free(w->route);
    free(w->ids);
    free(w->greedy);
}

static weir_status run_exact(struct work_case *w, weir_error *err) {
    weir_status status = open_flow(w, err);
    if (status)
        return status;
    if (w->n_act || w->n_route)
        program_set_tap(runner_program(w->runner), tap, w);
    status = prompt_exact(w, err);
    program_set_tap(runner_program(w->runner), NULL, NULL);
    if (!status)
        status = report_flow(w, err);
    if (!status)
        status = compare_states(w, err);
    if (!status && w->n_greedy)
        status = greedy_exact(w, err);
    return status;
}

weir_status score_run(const struct score_settings *s, const struct vectors *v, const json_t *c,
                      struct score_case *out, weir_error *err) {
    *out = (struct score_case){.name = vectors_case_name(c), .ok = true, .keeps_gap_rule = true};
    struct work_case w = {.s = s, .v = v, .json = c, .out = out};
    weir_status status = read_case(&w, err);
    if (!status) {
        struct runner_options o = {.column = s->fast ? s->column : &column_ref,
                                   .threads = s->threads,
                                   .sequences = 1,
                                   .positions = (uint32_t)(w.n + w.n_greedy + 1),
                                   .rows = s->rows,
                                   .logits = s->rows,
                                   .kv_dtype = s->kv_dtype,
                                   .tuning = s->fast ? s->tuning : NULL,
                                   .device = s->fast ? s->device : NULL};
        status = runner_open(s->model, s->weights, &o, &w.runner, err);
    }
    if (!status)
        status = s->fast ? run_fast(&w, err) : run_exact(&w, err);
    if (!status)
        status = runner_failure(w.runner, err);
    close_case(&w);
    if (status)
        score_free(out);
    return status;
}

void score_free(struct score_case *c) {
    free(c->check);
    c->check = NULL;
    c->n_checks = 0;
}
