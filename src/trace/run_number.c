/* run_number.c: how numbers, texts and times stand in the files of a run. Called by their
 * writers. */
#include "trace/run_inside.h"

#include <math.h>
#include <string.h>
#include <time.h>

json_t *json_rounded(double x, int decimals) {
    if (!isfinite(x))
        return json_null();
    double unit = pow(10, decimals);
    double rounded = round(x * unit) / unit;
    /* + 0.0: no "-0.0" in a file. */
    return json_real(fabs(x * unit) < 9e15 ? rounded + 0.0 : x);
}

json_t *json_text_or_null(const char *text) {
    if (!text)
        return json_null();
    json_t *s = json_string(text);
    if (s)
        return s;
    /* A server may answer with any bytes; a file of ours stays JSON. */
    char *copy = strdup(text);
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    s = copy ? json_string(copy) : NULL;
    free(copy);
    return s;
}

json_t *json_count_or_null(uint64_t n) {
    return n ? json_integer((json_int_t)n) : json_null();
}

json_t *json_ns_or_null(int64_t ns) {
    return ns ? json_integer(ns) : json_null();
}

void utc_text(int64_t unix_ns, char out[32]) {
    time_t s = (time_t)(unix_ns / 1000000000);
    struct tm t;
    out[0] = 0;
    if (unix_ns <= 0 || !gmtime_r(&s, &t))
        return;
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out + n, 32 - n, ".%06dZ", (int)(unix_ns % 1000000000 / 1000));
}

void json_put(json_t *object, const char *key, json_t *value, bool *ok) {
    if (json_object_set_new(object, key, value))
        *ok = false;
}

json_t *json_done(json_t *object, bool ok) {
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

json_t *json_statistics(const struct distribution *d, int decimals) {
    json_t *o = json_object();
    bool ok = o;
    json_put(o, "mean", json_rounded(d->mean, decimals), &ok);
    json_put(o, "p50", json_rounded(d->p50, decimals), &ok);
    json_put(o, "p75", json_rounded(d->p75, decimals), &ok);
    json_put(o, "p90", json_rounded(d->p90, decimals), &ok);
    json_put(o, "p95", json_rounded(d->p95, decimals), &ok);
    json_put(o, "p99", json_rounded(d->p99, decimals), &ok);
    json_put(o, "std", json_rounded(d->std, decimals), &ok);
    return json_done(o, ok);
}
