/* results_json.c: flat rows, InferenceX aggregates and results of vLLM's `bench serve`. Called by
 * read_results.c and the reader of CSV. Invariant that bites: vLLM's ITL pools the gaps between all
 * chunks of all requests, so that interactivity follows from its TPOT alone. */
#include "trace/results_inside.h"

#include "model/json_fields.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
    bool seconds;
} quantities[] = {
    {"ttft", offsetof(struct result_row, ttft), true},
    {"tpot", offsetof(struct result_row, tpot), true},
    {"itl", offsetof(struct result_row, itl), true},
    {"e2el", offsetof(struct result_row, e2el), true},
    {"intvty", offsetof(struct result_row, intvty), false},
};
enum { QUANTITIES = sizeof quantities / sizeof *quantities };

static double *numbers(struct result_row *r, int quantity) {
    return (double *)(void *)((char *)r + quantities[quantity].offset);
}

static double number(struct json_fields *f, const char *name) {
    return json_field_number(f, name, false, NAN, 0, 1e15);
}

static void text(struct json_fields *f, const char *name, const char *other, char *out,
                 size_t cap) {
    const char *value = json_field(f, name) ? json_field_string(f, name, false)
                        : other             ? json_field_string(f, other, false)
                                            : NULL;
    if (!value)
        return;
    size_t n = strlen(value);
    if (n >= cap)
        for (n = cap - 1; n && ((unsigned char)value[n] & 0xC0) == 0x80;)
            n--; /* not in the middle of a character */
    snprintf(out, cap, "%.*s", (int)n, value);
}

static void names(struct json_fields *f, struct result_row *r) {
    text(f, "label", "series", r->label, sizeof r->label);
    text(f, "hw", "hardware", r->hardware, sizeof r->hardware);
    text(f, "framework", "backend", r->framework, sizeof r->framework);
    text(f, "model", "model_id", r->model, sizeof r->model);
    text(f, "precision", NULL, r->precision, sizeof r->precision);
    text(f, "spec", "spec_decoding", r->spec, sizeof r->spec);
    text(f, "date", NULL, r->date, sizeof r->date);
    text(f, "state", NULL, r->state, sizeof r->state);
}

/* TP x PP x PCP; unknown where TP is. */
static double gpus_of(struct json_fields *f) {
    double tp = number(f, "tp"), pp = number(f, "pp"), pcp = number(f, "pcp_size");
    return tp * (pp > 0 ? pp : 1) * (pcp > 0 ? pcp : 1);
}

static weir_status no_memory(const char *path, weir_error *err) {
    return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its results");
}

weir_status results_flat(const json_t *object, const char *place, const char *source,
                         struct results *out, weir_error *err) {
    struct json_fields f = {object, NULL, "", place, err, WEIR_OK};
    struct result_row *r = results_row(out, source);
    char name[64];
    if (!r)
        return no_memory(place, err);
    names(&f, r);
    r->conc = number(&f, "conc");
    r->isl = number(&f, "isl");
    r->osl = number(&f, "osl");
    if (r->isl > 0 && r->osl > 0)
        snprintf(r->workload, sizeof r->workload, "%g/%g", r->isl, r->osl);
    else if (json_is_string(json_object_get(object, "dataset")))
        text(&f, "dataset", NULL, r->workload, sizeof r->workload);
    r->gpus = number(&f, "gpus");
    if (isnan(r->gpus))
        r->gpus = gpus_of(&f);
    r->total_rate = number(&f, "tput_per_gpu");
    r->out_rate = number(&f, "output_tput_per_gpu");
    r->in_rate = number(&f, "input_tput_per_gpu");
    for (int q = 0; q < QUANTITIES; q++)
        for (int s = 0; s < STATISTICS; s++) {
            double *to = &numbers(r, q)[s];
            snprintf(name, sizeof name, "%s_%s", statistic_name((enum statistic)s),
                     quantities[q].name);
            *to = number(&f, name);
            if (isnan(*to) && quantities[q].seconds) {
                strcat(name, "_ms");
                *to = number(&f, name) / 1000;
            }
        }
    result_complete(r);
    return f.status;
}

/* ------------------------------------------------------------------------------------ aggregate */

static struct json_fields inner(const struct json_fields *whole, const json_t *object,
                                const char *scope) {
    struct json_fields f = *whole;
    f.first = object;
    f.scope = scope;
    return f;
}

static weir_status aggregate(const json_t *object, const char *path, struct results *out,
                             weir_error *err) {
    static const char *const stat[STATISTICS] = {"mean", "p50", "p75", "p90", "p95", "p99", "std"};
    struct json_fields f = {object, NULL, "", path, err, WEIR_OK};
    struct result_row *r = results_row(out, path);
    if (!r)
        return no_memory(path, err);
    names(&f, r);
    r->conc = number(&f, "conc");
    r->gpus = gpus_of(&f);
    const json_t *metrics = json_field_object(&f, "request_metrics", true);
    struct json_fields m = inner(&f, metrics, "request_metrics.");
    const json_t *latency = json_field_object(&m, "latency", true);
    const json_t *throughput = json_field_object(&m, "throughput", true);
    struct json_fields t = inner(&m, throughput, "request_metrics.throughput.");
    const json_t *gpu = json_field_object(&t, "per_gpu", true);
    struct json_fields g = inner(&t, gpu, "request_metrics.throughput.per_gpu.");
    r->total_rate = number(&g, "total_tput_tps");
    r->out_rate = number(&g, "output_tput_tps");
    r->in_rate = number(&g, "input_tput_tps");
    struct json_fields top = inner(&g, object, "");
    bool valid = json_field_bool(&top, "submission_valid", true);
    struct json_fields l = inner(&top, latency, "request_metrics.latency.");
    for (int q = 0; q < QUANTITIES; q++) {
        const json_t *of = json_field_object(&l, quantities[q].name, false);
        char scope[64];
        snprintf(scope, sizeof scope, "request_metrics.latency.%s.", quantities[q].name);
        struct json_fields s = inner(&l, of, scope);
        for (int i = 0; of && i < STATISTICS; i++)
            numbers(r, q)[i] = number(&s, stat[i]);
        l.status = s.status;
    }
    /* What earlier versions wrote says by its scales alone that it is not comparable; "state" is
     * "" in what other tools wrote. */
    if (!r->state[0] && !valid)
        strcpy(r->state, "invalid");
    const json_t *dataset = json_object_get(object, "dataset");
    struct json_fields d = inner(&l, dataset, "dataset.");
    if (json_is_object(dataset)) {
        r->isl = number(&d, "isl");
        r->osl = number(&d, "osl");
        double time = number(&d, "time_scale"), length = number(&d, "length_scale");
        if (!r->state[0] && ((time >= 0 && time != 1) || (length >= 0 && length != 1)))
            strcpy(r->state, "scaled");
        if (r->isl > 0 && r->osl > 0)
            snprintf(r->workload, sizeof r->workload, "%g/%g", r->isl, r->osl);
        else
            text(&d, "name", NULL, r->workload, sizeof r->workload);
    }
    result_complete(r);
    return d.status;
}

/* ------------------------------------------------------------------------------------ vLLM bench
 */

static weir_status vllm(const json_t *object, const char *path, uint32_t gpus, struct results *out,
                        weir_error *err) {
    weir_status status = results_flat(object, path, path, out, err);
    if (status)
        return status;
    struct json_fields f = {object, NULL, "", path, err, WEIR_OK};
    struct result_row *r = &out->row[out->n - 1];
    if (isnan(r->gpus))
        r->gpus = gpus ? gpus : NAN;
    if (isnan(r->gpus))
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "does not say how many GPUs it was measured on: --gpus N says it");
    r->conc = number(&f, "max_concurrency");
    double duration = json_field_number(&f, "duration", true, NAN, 1e-9, 1e15);
    double in = json_field_number(&f, "total_input_tokens", true, NAN, 0, 1e18);
    double made = json_field_number(&f, "total_output_tokens", true, NAN, 0, 1e18);
    double done = json_field_number(&f, "completed", false, NAN, 0, 1e15);
    r->in_rate = in / duration / r->gpus;
    r->out_rate = made / duration / r->gpus;
    r->total_rate = (in + made) / duration / r->gpus;
    if (done > 0) {
        r->isl = in / done;
        r->osl = made / done;
    }
    return f.status;
}

weir_status results_json(const json_t *value, const char *path, uint32_t gpus, struct results *out,
                         weir_error *err) {
    if (json_object_get(value, "request_metrics"))
        return aggregate(value, path, out, err);
    if (json_object_get(value, "output_throughput"))
        return vllm(value, path, gpus, out, err);
    const json_t *rows = json_is_array(value) ? value : json_object_get(value, "rows");
    if (!json_is_array(rows))
        return weir_fail(err, WEIR_BAD_FILE, path,
                         "is no InferenceX aggregate (\"request_metrics\"), no array of rows "
                         "(or \"rows\") and no result of vLLM (\"output_throughput\")");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        char place[sizeof err->where];
        const json_t *row = json_array_get(rows, i);
        snprintf(place, sizeof place, "%.*s: row %zu", (int)sizeof place - 32, path, i + 1);
        if (!json_is_object(row))
            return weir_fail(err, WEIR_BAD_FILE, place, "is not a JSON object");
        /* Rows may also be aggregates. */
        weir_status s = json_object_get(row, "request_metrics")
                            ? aggregate(row, place, out, err)
                            : results_flat(row, place, path, out, err);
        if (s)
            return s;
    }
    return WEIR_OK;
}
