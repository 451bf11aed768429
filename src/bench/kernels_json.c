/* kernels_json.c: the report of `weir bench kernels` as JSON. Called by the command.
 * Invariant that bites: every sample is kept, not the median alone; whoever doubts a figure of a
 * shared machine must see how it came about. */
#include "bench/kernels.h"

#include "base/plural.h"

#include "bench/kernels_machine.h"

#include <math.h>
#include <stdio.h>

/* JSON has no infinity: an error that is one becomes null. */
static json_t *real(double x) {
    json_t *v = isfinite(x) ? json_real(x) : NULL;
    return v ? v : json_null();
}

static json_t *reals(const double *x, uint32_t n) {
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(a, real(x[i]));
    return a;
}

static json_t *rate(double x) {
    return x > 0 ? real(x) : json_null();
}

static json_t *roof_json(const struct roof *r) {
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "read_gbps", rate(r->read), "modify_gbps",
                     rate(r->modify), "copy_gbps", rate(r->copy), "cache_gbps", rate(r->cache),
                     "f32_gflops", rate(r->peak[ARITHMETIC_F32]), "bf16_gflops",
                     rate(r->peak[ARITHMETIC_BF16]), "int8_gflops", rate(r->peak[ARITHMETIC_INT8]),
                     "amx_bf16_gflops", rate(r->peak[ARITHMETIC_AMX_BF16]));
}

static json_t *idle_json(const struct idle_share *s) {
    if (!s->known)
        return json_null();
    return json_pack("{s:o,s:o,s:o}", "others_cores", real(s->others), "stolen_cores",
                     real(s->stolen), "seconds", real(s->seconds));
}

static void set(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, value);
}

static void set_timing(json_t *o, const struct kernel_timing *t) {
    set(o, "variant", json_string(t->variant));
    set(o, "us", real(t->us));
    set(o, "gbps", real(t->gbps));
    set(o, "gflops", real(t->gflops));
    set(o, "best_us", real(t->best_us));
    set(o, "spread", real(t->spread));
    set(o, "samples_us", reals(t->sample_us, t->n));
}

static json_t *error_json(const struct kernel_row *r) {
    return json_pack("{s:o,s:o,s:I,s:I,s:f,s:f,s:s}", "rms", real(r->error.rms), "largest",
                     real(r->error.largest), "values", (json_int_t)r->error.values, "wrong_ids",
                     (json_int_t)r->error.wrong, "rms_bound", r->bound.rms, "largest_bound",
                     r->bound.largest, "reason", r->bound.reason);
}

static json_t *row_json(const struct kernel_row *r) {
    json_t *o = json_object();
    set(o, "name", json_string(r->c.name));
    set(o, "shape", json_string(r->shape));
    set(o, "dtype", json_string(kernel_format(&r->c)));
    set(o, "rows", json_integer(r->c.n));
    set(o, "arithmetic", json_string(arithmetic_name(r->arithmetic)));
    if (r->skipped[0]) {
        set(o, "variant", json_string(r->main.variant));
        set(o, "skipped", json_string(r->skipped));
        return o;
    }
    set_timing(o, &r->main);
    set(o, "share_of_roof", real(r->share));
    set(o, "best_share_of_roof", real(r->best_share));
    set(o, "limit", json_string(r->limit));
    set(o, "error", real(r->error.rms));
    set(o, "error_detail", error_json(r));
    set(o, "exceeded", json_boolean(r->exceeded));
    set(o, "busy", json_boolean(r->busy));
    set(o, "idle", idle_json(&r->idle));
    set(o, "read_bytes", real(r->cost.read_bytes));
    set(o, "modify_bytes", real(r->cost.modify_bytes));
    set(o, "write_bytes", real(r->cost.write_bytes));
    set(o, "cache_bytes", real(r->cost.cache_bytes));
    set(o, "flops", real(r->cost.flops));
    set(o, "working_set_bytes", real(r->bytes));
    set(o, "copies", json_integer(r->copies));
    set(o, "calls_per_sample", json_integer(r->calls));
    set(o, "samples_share", reals(r->sample_share, r->main.n));
    json_t *roofs = json_array();
    for (uint32_t i = 0; i < r->main.n; i++)
        json_array_append_new(roofs, roof_json(&r->sample_roof[i]));
    set(o, "samples_roof", roofs);
    if (r->base.variant) {
        json_t *b = json_object();
        set_timing(b, &r->base);
        set(b, "times_as_fast", real(r->main.us > 0 ? r->base.us / r->main.us : 0));
        set(o, "baseline", b);
    } else {
        set(o, "baseline", json_null());
    }
    return o;
}

const char *kernels_warning(const struct kernel_report *r, char *buf, size_t cap) {
    buf[0] = 0;
    if (r->quiet)
        return buf;
    if (idle_is_quiet(&r->before) && idle_is_quiet(&r->after))
        snprintf(
            buf, cap,
            "%zu of %zu %s disturbed, by others or by rates that lie more than 15 %% apart; do "
            "not compare these figures",
            r->busy, r->n, plural(r->n, "case was", "cases were"));
    else
        snprintf(buf, cap,
                 "the machine was busy: others kept %.2f cores before and %.2f after, and %zu of "
                 "%zu %s disturbed; do not compare these figures",
                 r->before.others, r->after.others, r->busy, r->n,
                 plural(r->n, "case was", "cases were"));
    return buf;
}

json_t *kernels_json(const struct kernel_report *r) {
    json_t *o = json_object(), *roof = roof_json(&r->roof), *rows = json_array();
    json_t *warnings = json_array();
    char line[256];
    if (*kernels_warning(r, line, sizeof line))
        json_array_append_new(warnings, json_string(line));
    set(roof, "buffer_bytes", json_integer((json_int_t)r->roof_bytes));
    set(roof, "barrier_us", real(r->barrier_us));
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(rows, row_json(&r->row[i]));
    set(o, "machine", machine_json(r->threads));
    set(o, "roof", roof);
    set(o, "kernels", rows);
    set(o, "quiet", json_boolean(r->quiet));
    set(o, "idle_before", idle_json(&r->before));
    set(o, "idle_after", idle_json(&r->after));
    set(o, "exceeded", json_integer((json_int_t)r->exceeded));
    set(o, "warnings", warnings);
    return o;
}
