/* run.c: life of a run in memory. Called by the replay, the reader of its files and the reports. */
#include "trace/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t run_gpus(const struct run_subject *s) {
    const uint32_t factor[] = {s->tp, s->pp, s->pcp};
    uint64_t n = 1;
    for (int i = 0; i < 3 && n <= UINT32_MAX; i++)
        n *= factor[i] ? factor[i] : 1;
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

void server_sample_clear(struct server_sample *s) {
    *s = (struct server_sample){
        .at = 0,
        .prompt_tokens = NAN,
        .generated_tokens = NAN,
        .requests_done = NAN,
        .hit_tokens = NAN,
        .query_tokens = NAN,
        .external_hit_tokens = NAN,
        .external_query_tokens = NAN,
        .device_tokens = NAN,
        .host_tokens = NAN,
        .disk_tokens = NAN,
        .remote_tokens = NAN,
        .computed_tokens = NAN,
        .running = NAN,
        .waiting = NAN,
        .kv_usage = NAN,
        .kv_total_tokens = NAN,
        .host_usage = NAN,
        .host_used_tokens = NAN,
        .host_total_tokens = NAN,
        .bytes_out = NAN,
        .bytes_in = NAN,
        .seconds_out = NAN,
        .seconds_in = NAN,
        .drafts = NAN,
        .drafted_tokens = NAN,
        .accepted_tokens = NAN,
        .power_watts = NAN,
    };
}

static void texts_free(char **text, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        free(text[i]);
    free(text);
}

void run_free(struct run *r) {
    struct run_subject *s = &r->subject;
    char *const texts[] = {s->hardware,        s->framework,       s->framework_version,
                           s->model,           s->model_prefix,    s->image,
                           s->precision,       s->spec_decoding,   s->kv_offloading,
                           s->offload_name,    s->offload_version, s->label,
                           r->scenario,        r->dataset,         r->url,
                           r->metrics_adapter, r->abort_reason,    r->strings};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    for (uint32_t i = 0; i < r->n_records; i++)
        call_record_free(&r->records[i]);
    free(r->records);
    free(r->samples);
    texts_free(r->warnings, r->n_warnings);
    texts_free(r->overrides, r->n_overrides);
    json_decref(r->config);
    json_decref(r->server);
    *r = (struct run){0};
}

struct call_record *run_record(struct run *r) {
    if (r->n_records == r->record_room) {
        uint32_t room = r->record_room ? 2 * r->record_room : 64;
        struct call_record *more = realloc(r->records, room * sizeof *more);
        if (!more)
            return NULL;
        r->records = more;
        r->record_room = room;
    }
    struct call_record *c = &r->records[r->n_records++];
    *c = (struct call_record){0};
    return c;
}

static void clean(char *text) {
    for (unsigned char *p = (unsigned char *)text; p && *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
}

void run_clean(struct run *r) {
    struct run_subject *s = &r->subject;
    char *const texts[] = {s->hardware,     s->framework,       s->framework_version,
                           s->model,        s->model_prefix,    s->image,
                           s->precision,    s->spec_decoding,   s->kv_offloading,
                           s->offload_name, s->offload_version, s->label,
                           r->scenario,     r->dataset,         r->url,
                           r->abort_reason, r->metrics_adapter};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        clean(texts[i]);
    for (uint32_t i = 0; i < r->n_warnings; i++)
        clean(r->warnings[i]);
}

bool run_warn(struct run *r, const char *format, ...) {
    char *text = NULL;
    va_list ap;
    va_start(ap, format);
    int n = vasprintf(&text, format, ap);
    va_end(ap);
    if (n < 0)
        return false;
    char **more = realloc(r->warnings, (r->n_warnings + 1) * sizeof *more);
    if (!more) {
        free(text);
        return false;
    }
    r->warnings = more;
    r->warnings[r->n_warnings++] = text;
    return true;
}
