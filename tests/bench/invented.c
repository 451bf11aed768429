#include "tests/bench/invented.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void samples(struct run *r, unsigned traits) {
    double prompt = 0;
    for (uint32_t i = 0; i < r->n_records; i++)
        prompt += (double)r->records[i].in;
    r->n_samples = r->sample_room = 200;
    r->samples = calloc(r->n_samples, sizeof *r->samples);
    r->metrics_adapter = strdup("weir");
    for (uint32_t i = 0; i < r->n_samples; i++) {
        struct server_sample *s = &r->samples[i];
        double part = i / (r->n_samples - 1.0);
        server_sample_clear(s);
        s->at = r->profiling_started +
                (int64_t)(part * (double)(r->profiling_ended - r->profiling_started));
        s->prompt_tokens = prompt * part;
        s->computed_tokens = prompt * part * 0.3;
        s->device_tokens = prompt * part * 0.5;
        s->host_tokens = prompt * part * 0.15;
        s->disk_tokens = prompt * part * 0.05;
        s->kv_usage = 0.5 + 0.4 * sin(part * 9) * part;
        if (traits & TRAIT_DRAFTS) {
            s->drafts = 1000 * part;
            s->drafted_tokens = 3000 * part;
            s->accepted_tokens = 2000 * part; /* an acceptance length of 3 */
        }
    }
}

void invent(struct run *out, const char *label, double slower, uint32_t lanes, double seconds,
            unsigned traits) {
    synthesise(out, &(struct synthetic){.slower = slower,
                                        .lanes = lanes,
                                        .seconds = seconds,
                                        .sessions = 3,
                                        .noise = lanes * 64 + traits,
                                        .label = label});
    if (traits & TRAIT_OTHER_MACHINE) {
        free(out->subject.hardware);
        out->subject.hardware = strdup("mi355x");
    }
    if (traits & TRAIT_SCALED)
        out->time_scale = 0.1;
    out->was_cancelled = traits & TRAIT_CANCELLED;
    for (uint32_t i = 0; (traits & TRAIT_FAILING) && i < out->n_records; i += 8) {
        snprintf(out->records[i].error_type, sizeof out->records[i].error_type, "http");
        out->records[i].error_code = 500;
    }
    if (traits & TRAIT_DRAFTS)
        json_object_set_new(out->config, "num_speculative_tokens", json_integer(3));
    if (!(traits & TRAIT_SILENT))
        samples(out, traits);
    out->overhead.late_us.n = 100;
    out->overhead.late_us.p99 = 83;
    out->overhead.busy = 0.12;
    run_warn(out, "the metrics endpoint answered late <3> times");
}

size_t invent_sweep(const char *dir) {
    static const struct {
        const char *name, *label;
        double slower;
        uint32_t lanes;
        double seconds;
        unsigned traits;
    } runs[] = {
        {"on-1", "cache on", 0.7, 1, 120, 0},
        {"on-2", "cache on", 0.8, 2, 120, 0},
        {"on-4", "cache on", 1.0, 4, 120, 0},
        {"on-8", "cache on", 1.4, 8, 120, 0},
        {"on-16", "cache on", 2.2, 16, 120, 0},
        {"on-16-again", "cache on", 2.3, 16, 110, 0},
        {"off-1", HOSTILE_LABEL, 1.1, 1, 120, TRAIT_OTHER_MACHINE | TRAIT_SILENT},
        {"off-4", HOSTILE_LABEL, 1.6, 4, 120, TRAIT_OTHER_MACHINE | TRAIT_SILENT},
        {"off-16", HOSTILE_LABEL, 3.1, 16, 120, TRAIT_OTHER_MACHINE | TRAIT_SILENT},
        {"drafts-2", "drafts 3", 0.5, 2, 60, TRAIT_DRAFTS | TRAIT_CANCELLED},
        {"drafts-8", "drafts 3", 0.8, 8, 120, TRAIT_DRAFTS},
        {"drafts-16", "drafts 3", 1.0, 16, 120, TRAIT_DRAFTS | TRAIT_FAILING},
        {"drafts-32", "drafts 3", 1.4, 32, 120, TRAIT_DRAFTS | TRAIT_SCALED},
    };
    size_t n = sizeof runs / sizeof runs[0];
    mkdir(dir, 0777);
    for (size_t i = 0; i < n; i++) {
        struct run r;
        char path[4096];
        weir_error err = {0};
        snprintf(path, sizeof path, "%s/%s", dir, runs[i].name);
        invent(&r, runs[i].label, runs[i].slower, runs[i].lanes, runs[i].seconds, runs[i].traits);
        if (run_write(&r, path, &err)) {
            fprintf(stderr, "%s: %s\n", err.where, err.message);
            exit(1);
        }
        run_free(&r);
    }
    return n;
}
